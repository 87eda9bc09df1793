//! The libraries that are installed load, and come from where they were found. Needs no card.

use cuda::libraries::{self, Library};

#[test]
fn what_is_found_is_what_is_loaded() {
    for (library, version) in libraries::versions() {
        match version {
            Ok(version) => {
                println!("{:<16} {:<10} {:?}", library.name(), version.version, version.path);
                assert!(version.version.starts_with(|c: char| ('1'..='9').contains(&c)), "{version:?}");
                if let Some(found) = libraries::find(library) {
                    assert_eq!(version.path, found.canonicalize().ok(), "{}", library.name());
                }
            }
            Err(missing) => println!("skipped: {missing}"),
        }
    }
}

#[test]
fn parts_of_cudnn_come_from_its_own_folder() {
    if let Err(missing) = libraries::load(Library::Cudnn) {
        println!("skipped: {missing}");
        return;
    }
    let Some(folder) = libraries::mapped(Library::Cudnn).and_then(|p| p.parent().map(std::path::Path::to_path_buf))
    else {
        println!("skipped: the system does not say what it has mapped");
        return;
    };
    let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
    let parts = maps.lines().filter_map(|l| l.find('/').map(|at| std::path::PathBuf::from(&l[at..])));
    for part in parts.filter(|p| p.to_string_lossy().contains("libcudnn")) {
        assert_eq!(part.parent(), Some(&*folder), "{}", part.display());
    }
}
