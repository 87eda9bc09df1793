//! `--batch auto`: the largest batch that fits, as a number that the run keeps.

mod common;

use common::{Memory, data_set, tiny};
use train::{Resume, TrainEnd, TrainError, TrainOptions, run};

#[test]
fn auto_becomes_the_largest_batch_that_leaves_some_memory_free_and_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let data = data_set(folder.path(), 12, 2);
    let options = TrainOptions { epochs: 2, ..tiny(folder.path(), &data, "auto") };
    let auto = |memory_available: u64| TrainOptions {
        batch_size: -1,
        memory_available: Some(memory_available),
        ..options.clone()
    };
    let needed = |batch_size: i64| {
        let options = TrainOptions { batch_size, memory_available: Some(1), ..options.clone() };
        match run(&options, &mut Memory::default()).unwrap_err() {
            TrainError::Memory { needed, .. } => needed,
            other => panic!("{other}"),
        }
    };
    // A twentieth of what is free stays free.
    let room = |batch: i64| needed(batch) * 20 / 19 + 20;
    let chosen = |memory_available: u64| {
        let mut memory = Memory { stop_after: Some(1), ..Memory::default() };
        let cut = run(&auto(memory_available), &mut memory).unwrap();
        assert_eq!(cut.end, TrainEnd::Interrupted);
        let line = memory.lines.iter().find_map(|l| l.strip_prefix("--batch auto: ")).unwrap().to_owned();
        let options = std::fs::read_to_string(cut.folder.join("opt.yaml")).unwrap();
        let number = line.split(',').next().unwrap().to_owned();
        assert!(options.contains(&format!("batch_size: {number}\n")), "{line}: {options}");
        (number, line, cut.folder)
    };
    let (three, line, resumable) = chosen(room(3));
    assert_eq!(three, "3", "{line}");
    assert!(line.contains("leaves 5 % of it free"), "{line}");
    // 8 is the last step of one; 12 is no multiple of 8.
    assert_eq!(chosen(room(8)).0, "8");
    let (all, line, _) = chosen(100 * room(8));
    assert_eq!(all, "8", "{line}");

    let error = run(&auto(1), &mut Memory::default()).unwrap_err();
    assert!(matches!(error, TrainError::Option { flag: "batch", .. }), "{error}");
    assert!(error.hint().unwrap().contains("lower --img"), "{:?}", error.hint());

    // Asked for once more, with other memory: the run goes on with its own number.
    let mut memory = Memory::default();
    let resumed = TrainOptions {
        resume: Some(Resume::From(resumable)),
        batch_size: -1,
        given: vec!["resume".to_owned(), "batch-size".to_owned()],
        ..TrainOptions::default()
    };
    let ended = run(&resumed, &mut memory).unwrap();
    assert_eq!(ended.end, TrainEnd::Finished);
    assert!(memory.lines.iter().any(|l| l.contains("12 images in 4 batches of 3")), "{:?}", memory.lines);
}
