//! `yolov9 env`, `yolov9 selftest` and `yolov9 bench`. Nothing here needs a GPU; what one would change is not looked at.

use crate::harness::Place;

#[test]
fn env_tells_of_every_library_and_what_brings_it() {
    let ran = Place::new().run(&["env"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{ran:?}");
    assert!(ran.stdout.starts_with("yolov9 "), "{ran:?}");
    for name in ["driver", "card", "the CUDA driver", "NVML", "NVRTC", "cuBLASLt", "cuDNN", "NCCL", "kernels", "tuning"]
    {
        assert!(ran.stdout.lines().any(|line| line.starts_with(name)), "{name}: {ran:?}");
    }
    let missing = ran.stdout.matches("not there: ").count();
    assert_eq!(ran.stdout.matches("to get it: ").count(), missing, "{ran:?}");
}

#[test]
fn selftest_and_bench_without_a_card_say_so_and_what_to_do() {
    for args in [&["selftest"][..], &["bench", "step"]] {
        let ran = Place::new().run(args);
        assert_eq!(ran.code, Some(1), "{ran:?}");
        let errors = ran.labelled("error");
        assert!(errors.len() == 1 && (errors[0].contains("driver") || errors[0].contains("no card")), "{ran:?}");
        assert_eq!(ran.labelled("hint").len(), 1, "{ran:?}");
    }
}

#[test]
fn a_device_that_is_none_is_wrong_usage() {
    for args in [&["selftest", "--device", "tpu"][..], &["bench", "step", "--device", "tpu"]] {
        let ran = Place::new().run(args);
        assert_eq!(ran.code, Some(2), "{ran:?}");
        assert!(ran.labelled("hint")[0].contains("cpu"), "{ran:?}");
    }
}

#[test]
fn selftest_on_the_cpu_prints_a_row_for_each_test() {
    let ran = Place::new().run(&["selftest", "--device", "cpu", "--only", "resize"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{ran:?}");
    assert_eq!(ran.stdout.lines().filter(|line| line.starts_with("ok   f32")).count(), 3, "{ran:?}");
    assert!(ran.stdout.contains("seed 0") && ran.stdout.ends_with("all 3 within their bounds\n"), "{ran:?}");
}

#[test]
fn selftest_of_a_name_that_is_none_is_wrong_usage() {
    let ran = Place::new().run(&["selftest", "--device", "cpu", "--only", "no such test"]);
    assert_eq!(ran.code, Some(2), "{ran:?}");
}

#[test]
fn bench_step_on_the_cpu_prints_and_writes_what_it_measured() {
    let place = Place::new();
    let line = "bench step --device cpu --model gelan-t --img 64 --batch 2 --steps 2 --warmup 0 --json step.json";
    let ran = place.run(&line.split(' ').collect::<Vec<_>>());
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{ran:?}");
    for start in ["gelan-t, 64 pixels, batch 2, f32", "step ", "images/s ", "arena "] {
        assert!(ran.stdout.lines().any(|line| line.starts_with(start)), "{start}: {ran:?}");
    }
    let text = std::fs::read_to_string(place.path("step.json")).expect("the report");
    assert!(text.contains("\"images_per_second\"") && text.contains("\"batch\": 2"), "{text}");
}

#[test]
fn a_profile_on_the_cpu_is_refused() {
    let line = "bench step --device cpu --model gelan-t --img 64 --batch 1 --steps 1 --warmup 0 --profile";
    let ran = Place::new().run(&line.split(' ').collect::<Vec<_>>());
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.labelled("error")[0].contains("card"), "{ran:?}");
}

#[test]
fn formats_that_are_none_are_wrong_usage() {
    let ran = Place::new().run(&["bench", "step", "--precision", "int8"]);
    assert_eq!(ran.code, Some(2), "{ran:?}");
    assert!(ran.stderr.contains("f32, tf32, bf16, f16"), "{ran:?}");
}
