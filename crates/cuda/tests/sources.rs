//! Every kernel compiles for every architecture that is served. Needs NVRTC and no card.

use cuda::CudaError;
use cuda::kernels::{compiler, sources};

#[test]
fn every_kernel_compiles_for_every_architecture() {
    if let Err(missing) = compiler::version() {
        eprintln!("skipped: {missing}");
        return;
    }
    // NVRTC compiles on as many threads as call it.
    std::thread::scope(|scope| {
        for architecture in ["sm_80", "sm_86", "sm_89", "sm_90a", "sm_120"] {
            scope.spawn(move || {
                for source in sources() {
                    let code = compiler::compile(source, architecture).unwrap_or_else(|e| panic!("{e}"));
                    assert_eq!(code[..4], *b"\x7fELF", "{} for {architecture}", source.name);
                }
            });
        }
    });
}

#[test]
fn a_mistake_in_a_kernel_is_shown_with_its_line() {
    let broken = compiler::Source { name: "broken.cu", text: "\n\nint x = ;\n" };
    match compiler::compile(broken, "sm_90a") {
        Err(CudaError::Missing { .. }) => eprintln!("skipped: no NVRTC"),
        Err(error) => assert!(error.to_string().contains("broken.cu(3)"), "{error}"),
        Ok(_) => panic!("it compiled"),
    }
}
