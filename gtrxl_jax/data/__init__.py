"""Offline data: trajectories, their files, and the segments on which models are trained.

`datasets` (reading), `minari` (writing) and `loader` (data that exceed memory) require the extra
"offline".
"""

from gtrxl_jax.data.spaces import Spaces as Spaces
from gtrxl_jax.data.spaces import dataset_spaces as dataset_spaces
from gtrxl_jax.data.trajectories import Trajectories as Trajectories
from gtrxl_jax.data.trajectories import check as check
from gtrxl_jax.data.trajectories import concatenate as concatenate
from gtrxl_jax.data.trajectories import held_out as held_out
from gtrxl_jax.data.trajectories import one_episode as one_episode
from gtrxl_jax.data.trajectories import returns_to_go as returns_to_go
from gtrxl_jax.data.trajectories import select as select
from gtrxl_jax.data.windows import Sampling as Sampling
from gtrxl_jax.data.windows import cut_segments as cut_segments
from gtrxl_jax.data.windows import sample_segments as sample_segments
from gtrxl_jax.segments import Segments as Segments
