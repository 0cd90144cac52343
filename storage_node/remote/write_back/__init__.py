"""Write-back: puts and deletions that are acknowledged by the store and uploaded to remote storage afterwards."""
