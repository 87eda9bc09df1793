//! What `yolov9 demo` trains on, and how.

mod data;
mod settings;

pub use data::write_data;
pub use settings::DemoSettings;
