//! What makes ONNX Runtime obey a plan: it runs nodes in orders of its own, merges what computes the same, hands memory on
//! and keeps it, and none of that can be switched off for one graph.

pub mod add_apart;
pub mod barriers;
pub mod colour_shapes;
pub mod forward_summands;
pub mod hide_sizes;
pub mod keep_apart;
pub mod keep_layout;
pub mod overwrite_last;
mod parting;
pub mod release_unread;
pub mod unmark_fused;
