//! Files that are damaged, lie about their sizes, or were made to do harm: an error that says what, soon, and no panic.

use model::weights::{self, Weights};
use model::{Model, Source};
use std::io::{Cursor, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipArchive, ZipWriter};

/// Far above the second that a read may take, as tests share their machine with others.
const LIMIT: Duration = Duration::from_secs(10);

/// The outcome of a read, which must come soon.
fn load(path: &Path) -> Result<Weights, String> {
    let start = Instant::now();
    let outcome = weights::load(path).map_err(|e| e.to_string());
    assert!(start.elapsed() < LIMIT, "{:?} for {:?}", start.elapsed(), outcome.err());
    if let Err(message) = &outcome {
        assert!(message.starts_with(&path.display().to_string()), "{message}");
    }
    outcome
}

struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn file(&self, bytes: &[u8]) -> PathBuf {
        let path = self.0.path().join("x.pt");
        std::fs::write(&path, bytes).unwrap();
        path
    }

    fn refused(&self, bytes: &[u8]) -> String {
        load(&self.file(bytes)).unwrap_err()
    }

    /// The error of an archive with this pickle and one storage of 16 bytes.
    fn refused_pickle(&self, pickle: &[u8]) -> String {
        self.refused(&archive(&[("data.pkl", pickle), ("data/0", &[0; 16])]))
    }
}

/// A stored archive with entries below `x/`.
fn archive(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    let options = SimpleFileOptions::default().compression_method(CompressionMethod::Stored);
    for (name, bytes) in entries {
        zip.start_file(format!("x/{name}"), options).unwrap();
        zip.write_all(bytes).unwrap();
    }
    zip.finish().unwrap().into_inner()
}

fn text(text: &str) -> Vec<u8> {
    [b"X".as_slice(), &(text.len() as u32).to_le_bytes(), text.as_bytes()].concat()
}

fn int(value: i64) -> Vec<u8> {
    [b"\x8a\x08".as_slice(), &value.to_le_bytes()].concat()
}

fn tuple(items: &[Vec<u8>]) -> Vec<u8> {
    [b"(".to_vec(), items.concat(), b"t".to_vec()].concat()
}

/// A tensor of the storage `0`.
fn tensor(class: &str, elements: i64, offset: i64, dims: &[i64], strides: &[i64]) -> Vec<u8> {
    let list = |values: &[i64]| tuple(&values.iter().map(|&v| int(v)).collect::<Vec<_>>());
    let class = format!("ctorch\n{class}\n").into_bytes();
    let storage = [tuple(&[text("storage"), class, text("0"), text("cpu"), int(elements)]), b"Q".to_vec()].concat();
    let args = tuple(&[storage, int(offset), list(dims), list(strides), b"\x89".to_vec(), b"}".to_vec()]);
    [b"ctorch._utils\n_rebuild_tensor_v2\n".to_vec(), args, b"R".to_vec()].concat()
}

/// `{"w": value}`.
fn dict(value: &[u8]) -> Vec<u8> {
    [b"\x80\x02}".to_vec(), text("w"), value.to_vec(), b"s.".to_vec()].concat()
}

#[test]
fn the_small_archives_of_these_tests_are_read() {
    let folder = Folder::new();
    let strided = dict(&tensor("FloatStorage", 4, 0, &[2, 2], &[1, 2]));
    let storage: Vec<u8> = [0.0f32, 1.0, 2.0, 3.0].iter().flat_map(|v| v.to_le_bytes()).collect();
    let path = folder.file(&archive(&[("data.pkl", &strided), ("data/0", &storage)]));
    assert_eq!(load(&path).unwrap().tensors.get("w").unwrap().values, [0.0, 2.0, 1.0, 3.0]);
}

#[test]
fn calls_that_would_do_harm_are_refused_by_name() {
    let folder = Folder::new();
    for (module, name) in [
        ("os", "system"),
        ("posix", "system"),
        ("nt", "system"),
        ("builtins", "eval"),
        ("__builtin__", "exec"),
        ("subprocess", "Popen"),
        ("torch.hub", "load"),
        ("os.path", "join"),
    ] {
        let call =
            [format!("c{module}\n{name}\n").into_bytes(), tuple(&[text("touch /tmp/x")]), b"R".to_vec()].concat();
        let error = folder.refused_pickle(&dict(&call));
        assert!(error.contains(&format!("holds a call of {module}.{name}, which no weight file needs")), "{error}");
        // Also where the pickle spells the name with texts of its own, and never calls it.
        let spelt = [b"\x80\x04".to_vec(), text(module), text(name), b"\x93.".to_vec()].concat();
        assert!(folder.refused_pickle(&spelt).contains("holds a call of"), "{module}.{name}");
    }
    let hidden = [b"\x80\x04".to_vec(), text("builtins"), text("eval.__call__"), b"\x93.".to_vec()].concat();
    assert!(folder.refused_pickle(&hidden).contains("builtins.eval.__call__"));
    // A bound method of a fused model is a `getattr`, and stays an object that nobody looks at.
    let method = [b"cbuiltins\ngetattr\n".to_vec(), tuple(&[b"N".to_vec(), text("forward")]), b"R".to_vec()].concat();
    let root =
        [b"\x80\x02}(".to_vec(), text("f"), method, text("w"), tensor("FloatStorage", 4, 0, &[4], &[1])].concat();
    let path = folder.file(&archive(&[("data.pkl", &[&root[..], b"u."].concat()), ("data/0", &[0; 16])]));
    assert_eq!(
        load(&path).unwrap().notes,
        ["entries that are no tensors are left out: 1", "it holds a state dict without the model's description"]
    );
}

#[test]
fn pickles_that_hold_themselves_or_nest_without_end_are_errors() {
    let folder = Folder::new();
    // d = {}; d["model"] = d.
    let own = [b"\x80\x02}q\0".to_vec(), text("model"), b"h\0s.".to_vec()].concat();
    assert!(folder.refused_pickle(&own).contains("it holds no weights"));
    // A module among its own modules.
    let module = [
        b"\x80\x02cmodels\nNet\n)\x81q\0}(".to_vec(),
        [text("_modules"), b"}".to_vec(), text("a"), b"h\0su".to_vec()].concat(),
        b"b.".to_vec(),
    ];
    assert!(folder.refused_pickle(&module.concat()).contains("nested more than 64 deep"));
    // Forty modules that each hold the next one twice: 2^40 names.
    let mut doubled = b"\x80\x02cm\nN\n)\x81q\0".to_vec();
    for _ in 0..40 {
        doubled.extend([b"cm\nN\n)\x81}(".to_vec(), text("_modules"), b"}(".to_vec()].concat());
        doubled.extend([text("a"), b"h\0".to_vec(), text("b"), b"h\0uubq\0".to_vec()].concat());
    }
    doubled.push(b'.');
    assert!(folder.refused_pickle(&doubled).contains("too often"));
    let nested =
        |open: &[u8], close: &[u8]| [b"\x80\x02", &open.repeat(200_000)[..], &close.repeat(200_000), b"."].concat();
    assert!(folder.refused_pickle(&nested(b"]", b"a")).contains("nested more than 1000 deep"));
    assert!(folder.refused_pickle(&[b"\x80\x02N", &b"\x85".repeat(200_000)[..], b"."].concat()).contains("1000 deep"));
    assert!(folder.refused_pickle(&nested(b"(", b"t")).contains("1000 deep"));
    let own_args = [b"\x80\x02(ctorch._tensor\n_rebuild_from_type_v2\n", &b"]q\0"[..], b"h\0a0."].concat();
    assert!(folder.refused_pickle(&own_args).contains("x.pt"));
}

#[test]
fn counts_beyond_the_pickle_are_errors() {
    let folder = Folder::new();
    for (pickle, want) in [
        (&b"\x80\x02X\xff\xff\xff\xff"[..], "ends too early"),
        (b"\x80\x02\x8d\xff\xff\xff\xff\xff\xff\xff\xff", "ends too early"),
        (b"\x80\x02\x8b\xff\xff\xff\x7f", "ends too early"),
        (b"\x80\x02Nr\xff\xff\xff\xff.", "at most 4194304 are kept"),
        (b"\x80\x02j\xff\xff\xff\xff.", "did not keep"),
        (b"\x80\x09N.", "protocol 9"),
        (b"\x80\x02\xffN.", "unknown opcode 0xff"),
        (b"\x80\x02.", "takes a value where there is none"),
        (b"\x80\x02(N.", "it holds no weights: its content is None"),
        (b"\x80\x02N", "ends too early"),
        (b"", "ends too early"),
    ] {
        let error = folder.refused_pickle(pickle);
        assert!(error.contains(want), "{pickle:?}: {error}");
    }
    // One long text, named as a class over and over, or made a tensor over and over.
    let name = [b"X\0\0\x10\0".to_vec(), vec![0xFF; 1 << 20], b"q\x01".to_vec()].concat();
    let pickle = [b"\x80\x04".to_vec(), name, b"h\x01h\x01\x93".repeat(100_000), b".".to_vec()].concat();
    assert!(folder.refused_pickle(&pickle).contains("names a class"));
    let list = tuple(&vec![int(1); 32]);
    let storage = tuple(&[text("storage"), b"ctorch\nFloatStorage\n".to_vec(), text("0"), text("cpu"), int(4)]);
    let args = tuple(&[[storage, b"Q".to_vec()].concat(), int(0), list.clone(), list]);
    let function = b"ctorch._utils\n_rebuild_tensor\nq\x01".to_vec();
    let calls = b"h\x01h\x02R".repeat(300_000);
    let pickle = [b"\x80\x02".to_vec(), function, args, b"q\x02".to_vec(), calls, b".".to_vec()].concat();
    assert!(folder.refused_pickle(&pickle).contains("more than 262144 tensors"));
    let steps = [b"\x80\x02", &b"N0".repeat(5 << 20)[..], b"N."].concat();
    assert!(folder.refused_pickle(&steps).contains("more than 4194304 steps"));
}

#[test]
fn tensors_beyond_their_storage_are_errors_before_anything_is_allocated() {
    let folder = Folder::new();
    let huge = 1 << 40;
    for (tensor, want) in [
        (tensor("FloatStorage", 5, 0, &[5], &[1]), "claims 5 elements, the file holds 16 bytes"),
        (tensor("FloatStorage", i64::MAX, 0, &[1], &[1]), "the file holds 16 bytes"),
        (tensor("FloatStorage", 4, 0, &[5], &[1]), "beyond its storage"),
        (tensor("FloatStorage", 4, 1, &[4], &[1]), "beyond its storage"),
        (tensor("FloatStorage", 4, 0, &[2, 2], &[3, 1]), "beyond its storage"),
        (tensor("FloatStorage", 4, 0, &[huge, huge], &[0, 0]), "beyond its storage"),
        (tensor("FloatStorage", 4, i64::MAX, &[2], &[i64::MAX]), "beyond its storage"),
        (tensor("FloatStorage", 4, 0, &[1 << 30], &[0]), "claim 1073741824 elements out of 16 bytes"),
        (tensor("FloatStorage", 4, 0, &[-1], &[1]), "that is none"),
        (tensor("FloatStorage", 4, 0, &[1, 1], &[1]), "2 extents and 1 strides"),
        (tensor("FloatStorage", 4, 0, &[1; 40], &[1; 40]), "that is none"),
        (tensor("ComplexFloatStorage", 2, 0, &[2], &[1]), "ComplexFloatStorage, which no weights have"),
        (b"ctorch._utils\n_rebuild_tensor_v2\nN\x85R".to_vec(), "lacks its storage"),
        (b"N\x85Q".to_vec(), "no storage"),
    ] {
        let error = folder.refused_pickle(&dict(&tensor));
        assert!(error.contains(want), "{want}: {error}");
    }
    let absent = archive(&[("data.pkl", &dict(&tensor("FloatStorage", 4, 0, &[4], &[1])))]);
    assert!(folder.refused(&absent).contains("data/0 is missing"));
    // One storage, many tensors.
    let mut many = b"\x80\x02}(".to_vec();
    for i in 0..5000 {
        many.extend([text(&i.to_string()), tensor("ByteStorage", 16, 0, &[1000], &[0])].concat());
    }
    many.extend(b"u.");
    assert!(folder.refused_pickle(&many).contains("claim 5000000 elements"));
}

#[test]
fn archives_that_lie_are_errors() {
    let folder = Folder::new();
    let good = archive(&[("data.pkl", &dict(&tensor("FloatStorage", 4, 0, &[4], &[1]))), ("data/0", &[7; 16])]);
    assert!(load(&folder.file(&good)).is_ok());
    // A flipped bit in a storage.
    let place = good.windows(16).position(|w| w == [7; 16]).unwrap();
    let mut flipped = good.clone();
    flipped[place + 3] ^= 4;
    assert!(folder.refused(&flipped).contains("the file is damaged"));
    // Sizes in the directory at the end.
    let entry = good.windows(4).rposition(|w| w == b"PK\x01\x02").unwrap();
    for (field, size) in [(20, u32::MAX - 1), (24, u32::MAX - 1), (20, 17), (24, 15), (42, u32::MAX - 1)] {
        let mut lying = good.clone();
        lying[entry + field..entry + field + 4].copy_from_slice(&size.to_le_bytes());
        if field == 20 && size < 100 {
            // Both of them, consistently: the data end in the directory.
            lying[entry + 24..entry + 28].copy_from_slice(&size.to_le_bytes());
        }
        let error = folder.refused(&lying);
        assert!(error.contains("x.pt"), "{field}: {error}");
    }
    // The number of entries.
    let end = good.windows(4).rposition(|w| w == b"PK\x05\x06").unwrap();
    for count in [0u16, 1, 3, 0xFFFE] {
        let mut lying = good.clone();
        lying[end + 8..end + 10].copy_from_slice(&count.to_le_bytes());
        lying[end + 10..end + 12].copy_from_slice(&count.to_le_bytes());
        assert!(load(&folder.file(&lying)).is_err(), "{count}");
    }
    // An entry that is compressed by its header.
    let mut deflated = good.clone();
    deflated[entry + 10] = 8;
    assert!(folder.refused(&deflated).contains("x/data/0 is compressed"));
    // Two entries of one name.
    let twice = archive(&[("data.pkl", &dict(b"N")), ("data/0", &[0; 16]), ("data/1", &[0; 16])]);
    let twice = replace(&twice, b"x/data/1", b"x/data/0");
    assert!(folder.refused(&twice).contains("two entries of one name"));
    let big = archive(&[("data.pkl", &dict(b"N")), ("byteorder", b"big")]);
    assert!(folder.refused(&big).contains("'big'-endian"));
}

fn replace(bytes: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    while let Some(i) = bytes.windows(from.len()).position(|w| w == from) {
        bytes[i..i + to.len()].copy_from_slice(to);
    }
    bytes
}

#[test]
fn archives_with_64_bit_sizes_are_read() {
    let folder = Folder::new();
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    let options = SimpleFileOptions::default().compression_method(CompressionMethod::Stored).large_file(true);
    let pickle = dict(&tensor("FloatStorage", 4, 0, &[4], &[1]));
    for (name, bytes) in [("x/data.pkl", &pickle[..]), ("x/data/0", &[0; 16])] {
        zip.start_file(name, options).unwrap();
        zip.write_all(bytes).unwrap();
    }
    let path = folder.file(&zip.finish().unwrap().into_inner());
    assert_eq!(load(&path).unwrap().tensors.get("w").unwrap().values, [0.0; 4]);
}

#[test]
fn files_that_are_something_else_are_called_by_what_they_look_like() {
    let folder = Folder::new();
    let mut tar = vec![0; 1024];
    tar[..4].copy_from_slice(b"sys_");
    tar[257..262].copy_from_slice(b"ustar");
    for (bytes, want) in [
        (&b""[..], "empty"),
        (b"\n <!DOCTYPE html><html><body>404</body></html>", "web page"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "Git LFS"),
        (b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.", "torch.save(torch.load("),
        (&tar, "tar archive"),
        (b"\x1f\x8b\x08\0\0\0\0\0\0\0", "gzip"),
        (b"nc: 80\nbackbone: []\n", "text file"),
        (b"PK\x03\x04 and nothing more", "cut short or damaged"),
    ] {
        let error = folder.refused(bytes);
        assert!(error.contains("not a weight file") && error.contains(want), "{want}: {error}");
    }
    let script = archive(&[("data.pkl", b"N."), ("constants.pkl", b"N."), ("code/__torch__.py", b"")]);
    assert!(folder.refused(&script).contains("TorchScript"));
    assert!(folder.refused(&archive(&[("a.txt", b"")])).contains("without data.pkl (x/a.txt)"));
    assert!(folder.refused(&archive(&[("best.pt", b"")])).contains("hint: unpack it and take x/best.pt"));
    assert!(load(folder.0.path()).unwrap_err().contains("it is a folder"));
}

#[test]
fn cut_files_are_errors() {
    let folder = Folder::new();
    let bytes = std::fs::read(testkit::fixture("checkpoints/converted-gelan-micro-nc3.pt")).unwrap();
    let cuts = (0..40).map(|i| bytes.len() * i / 40).chain([bytes.len() - 1, bytes.len() - 22, bytes.len() - 100]);
    for cut in cuts {
        let error = folder.refused(&bytes[..cut]);
        assert!(cut < 9 || error.contains("cut short"), "{cut}: {error}");
    }
}

/// A pseudo-random sequence.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(1);
        (testkit::mix(self.0) % n as u64) as usize
    }
}

/// Values of a result are as many as its shapes say.
fn check(weights: &Weights) {
    for (name, tensor) in weights.tensors.iter() {
        assert_eq!(tensor.values.len(), tensor.dims.iter().product::<usize>(), "{name}");
    }
    if let Some(meta) = &weights.meta {
        assert_eq!(meta.names.len(), meta.nc);
        Model::from_yaml(&meta.model, Source::Text("test".into()), meta.yaml.clone(), Some(meta.nc)).unwrap();
    }
}

#[test]
fn random_damage_is_an_error_or_a_sound_result() {
    let folder = Folder::new();
    let seed = 20_261_130;
    println!("seed {seed}");
    let mut random = Random(seed);
    let bytes = std::fs::read(testkit::fixture("checkpoints/converted-gelan-micro-nc3.pt")).unwrap();
    let mut read = 0;
    for round in 0..150 {
        let mut damaged = bytes.clone();
        for _ in 0..1 + round % 3 {
            let at = random.below(damaged.len());
            damaged[at] ^= 1 << random.below(8);
        }
        if let Ok(weights) = load(&folder.file(&damaged)) {
            check(&weights);
            read += 1;
        }
    }
    // Names, padding and time stamps have no checksum.
    assert!(read < 100, "{read} of 150 damaged files were read");
}

#[test]
fn random_edits_of_the_pickle_are_an_error_or_a_sound_result() {
    let folder = Folder::new();
    let seed = 20_261_201;
    println!("seed {seed}");
    let mut random = Random(seed);
    let path = testkit::fixture("checkpoints/converted-gelan-micro-nc3.pt");
    let mut zip = ZipArchive::new(std::fs::File::open(path).unwrap()).unwrap();
    let mut entries: Vec<(String, Vec<u8>)> = Vec::new();
    for i in 0..zip.len() {
        let mut entry = zip.by_index(i).unwrap();
        let name = entry.name().unwrap().split_once('/').unwrap().1.to_owned();
        let mut bytes = Vec::new();
        std::io::copy(&mut entry, &mut bytes).unwrap();
        entries.push((name, bytes));
    }
    let pickle = entries.iter().position(|(name, _)| name == "data.pkl").unwrap();
    let original = entries[pickle].1.clone();
    let opcodes = b"()]}.0123NRQbcdeghijlopqrstu\x81\x85\x86\x87\x88\x89\x8a\x8b\x8c\x90\x93\x94";
    let mut refused = 0;
    for round in 0..250 {
        let mut edited = original.clone();
        for _ in 0..1 + round % 4 {
            let at = random.below(edited.len());
            match random.below(4) {
                0 => edited[at] = random.below(256) as u8,
                1 => edited[at] = opcodes[random.below(opcodes.len())],
                2 => drop(edited.remove(at)),
                _ => {
                    let (from, length) = (random.below(edited.len() - 64), random.below(64));
                    let piece = edited[from..from + length].to_vec();
                    edited.splice(at..at, piece);
                }
            }
        }
        entries[pickle].1 = edited;
        let parts: Vec<(&str, &[u8])> = entries.iter().map(|(n, b)| (n.as_str(), b.as_slice())).collect();
        match load(&folder.file(&archive(&parts))) {
            Ok(weights) => check(&weights),
            Err(_) => refused += 1,
        }
    }
    assert!(refused > 50, "only {refused} of 250 edits were noticed");
}
