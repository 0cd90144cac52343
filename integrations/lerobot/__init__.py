"""LeRobot datasets in a store."""

from .dataset import LeRobotDataset

__all__ = ["LeRobotDataset"]
