"""Functions of layers, by the names and parameters of `torch.nn.functional`."""

from tenure.nn.functional.activation import *  # noqa: F403
from tenure.nn.functional.attention import *  # noqa: F403
from tenure.nn.functional.linear import *  # noqa: F403
from tenure.nn.functional.loss import *  # noqa: F403
from tenure.nn.functional.normalization import *  # noqa: F403
from tenure.nn.functional.pooling import *  # noqa: F403
from tenure.nn.functional.sparse import *  # noqa: F403
from tenure.nn.functional.upsampling import *  # noqa: F403
