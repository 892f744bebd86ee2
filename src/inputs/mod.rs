//! What the options hold besides numbers: amounts of memory as people write them, and the JSON files that describe
//! devices, costs, profiles and convolutions.

mod budget;
mod conv_table;
mod costs;
mod device;
mod file;
mod optimizer;
mod profile;
mod size;

pub use budget::Budget;
pub use conv_table::{ConvTableError, parse as parse_conv_table, read as read_conv_table};
pub(crate) use costs::unknown_nodes;
pub use costs::{CostsError, parse as parse_costs, read as read_costs};
pub use device::{DeviceError, find as find_device, parse as parse_device};
pub use optimizer::{Optimizer, OptimizerError};
pub use profile::{Profile, ProfileError, parse as parse_profile, read as read_profile};
pub use size::{SizeProblem, size as parse_size};
