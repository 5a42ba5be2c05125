"""Layers and models, by the names of `torch.nn`.

=================================  ================================================
`tenure.nn.Module`                 the base of layers and models
`tenure.nn.Linear` and so on       layers
`tenure.nn.functional`             functions of layers
`tenure.nn.init`                   initial values of parameters
`tenure.nn.utils`                  norms of gradients, and parameters as a vector
=================================  ================================================
"""

from tenure.nn import functional as functional
from tenure.nn import init as init
from tenure.nn import utils as utils
from tenure.nn.activation import *  # noqa: F403
from tenure.nn.attention import *  # noqa: F403
from tenure.nn.containers import *  # noqa: F403
from tenure.nn.conv import *  # noqa: F403
from tenure.nn.linear import *  # noqa: F403
from tenure.nn.loss import *  # noqa: F403
from tenure.nn.module import Module as Module
from tenure.nn.norm import *  # noqa: F403
from tenure.nn.parameter import Buffer as Buffer
from tenure.nn.parameter import Parameter as Parameter
from tenure.nn.pooling import *  # noqa: F403
from tenure.nn.recurrent import *  # noqa: F403
from tenure.nn.recurrent_cells import *  # noqa: F403
from tenure.nn.shape import *  # noqa: F403
from tenure.nn.transformer import *  # noqa: F403
from tenure.nn.upsampling import *  # noqa: F403
