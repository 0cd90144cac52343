"""Images made smaller, as JPEG: `client.etl.init("small", resized)`, then `etl="small"`, `args={"width": 96}`.

An image keeps its proportions: its shorter side is fitted and the middle is cut out, as for training.
"""

import io

import PIL.Image
import PIL.ImageOps


def resized(data: bytes, width: int = 224, height: int = 224, quality: int = 90) -> bytes:
    with PIL.Image.open(io.BytesIO(data)) as image:
        # As it is to be seen, whichever way the camera was held; large ones are decoded at a part of their size.
        image.draft("RGB", (2 * width, 2 * height))
        upright = PIL.ImageOps.exif_transpose(image).convert("RGB")
    made = io.BytesIO()
    PIL.ImageOps.fit(upright, (width, height)).save(made, "JPEG", quality=quality)
    return made.getvalue()
