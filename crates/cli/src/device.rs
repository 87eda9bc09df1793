//! The first line of a command: version and device, in words.

use crate::console::out;

/// Prints the first line. Whether `--device` can be obeyed is told by the command itself.
pub fn announce() {
    out(&format!("yolov9 {} · {}", env!("CARGO_PKG_VERSION"), describe()));
}

/// Such as `CPU (AMD EPYC 7763, 2 threads)`.
fn describe() -> String {
    let threads = rayon::current_num_threads();
    let plural = if threads == 1 { "thread" } else { "threads" };
    format!("CPU ({}, {threads} {plural})", processor())
}

/// The processor's name where the system tells it, else its architecture.
fn processor() -> String {
    let named = std::fs::read_to_string("/proc/cpuinfo").ok().and_then(|text| model_name(&text));
    named.or_else(|| std::env::var("PROCESSOR_IDENTIFIER").ok()).unwrap_or_else(|| std::env::consts::ARCH.to_owned())
}

fn model_name(cpuinfo: &str) -> Option<String> {
    let line = cpuinfo.lines().find(|l| l.starts_with("model name"))?;
    let name = line.split_once(':')?.1.replace("(R)", "").replace("(TM)", "");
    let name = name.split_whitespace().collect::<Vec<_>>().join(" ");
    (!name.is_empty()).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_processor_is_named_without_its_marks() {
        let text = "processor\t: 0\nmodel name\t: Intel(R) Xeon(R)  CPU\nmodel name\t: other\n";
        assert_eq!(model_name(text).as_deref(), Some("Intel Xeon CPU"));
        assert_eq!(model_name("processor : 0\n"), None);
    }
}
