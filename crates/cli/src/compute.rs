//! Flags that say where and how numbers are computed.

use clap::Args;
use train::Precision;

/// Device and number format.
#[derive(Args, Clone, Debug)]
pub struct Compute {
    /// Where to compute: auto takes the first NVIDIA GPU, or the CPU where there is none; cpu; or the number of a GPU
    #[arg(long, default_value = "auto", help_heading = "Machine")]
    pub device: String,
    /// How a GPU computes: auto is half precision (bf16 in training where the card has it, fp16 in inference); fp32,
    /// tf32, bf16, fp16
    #[arg(long, value_name = "NUMBERS", default_value_t = Precision::Auto, help_heading = "Machine")]
    pub precision: Precision,
}
