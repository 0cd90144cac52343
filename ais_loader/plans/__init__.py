"""Plans over numbers: which samples, as numbers 0 to n - 1, each step of an epoch has.

Every plan is a pure function of (epoch, step): no I/O, no torch, and no state that grows with the position. A position
is therefore resumed at once, by any number of machines.
"""

from ais_loader.plans.bucket_plan import BucketPlan
from ais_loader.plans.mix_plan import MixPlan
from ais_loader.plans.number_plan import NumberPlan
from ais_loader.plans.pack_plan import PackPlan
from ais_loader.plans.permutation import permuted
from ais_loader.plans.shuffle_plan import ShufflePlan

__all__ = ["BucketPlan", "MixPlan", "NumberPlan", "PackPlan", "ShufflePlan", "permuted"]
