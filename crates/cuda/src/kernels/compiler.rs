//! CUDA C++ to machine code: NVRTC, and a cache of what it made.
//!
//! A kernel's source has no headers from the user's machine. Its machine code is kept in the user's cache folder under
//! a hash of the source, the options, the architecture and NVRTC's version; a damaged entry is compiled again.

use crate::error::{CudaError, Result};
use crate::libraries::{Library, load};
use cudarc::nvrtc::{result, sys};
use std::ffi::CString;
use std::hash::Hasher;
use std::path::PathBuf;

/// What comes before every source.
const PRELUDE: &str = include_str!("prelude.cuh");

/// CUDA C++ that is part of this program.
#[derive(Clone, Copy, Debug)]
pub struct Source {
    /// File name in messages.
    pub name: &'static str,
    pub text: &'static str,
}

/// NVRTC's major and minor version.
///
/// # Errors
/// A missing library.
pub fn version() -> Result<(i32, i32)> {
    load(Library::Nvrtc)?;
    let (mut major, mut minor) = (0, 0);
    // SAFETY: two numbers that the call writes.
    unsafe { sys::nvrtcVersion(&mut major, &mut minor) }.result()?;
    Ok((major, minor))
}

/// Architectures as NVRTC names them: `sm_90a` for 9.0, whose matrix instructions other cards lack.
pub fn architecture(major: u32, minor: u32) -> String {
    match (major, minor) {
        (9, 0) => "sm_90a".to_owned(),
        _ => format!("sm_{major}{minor}"),
    }
}

/// Machine code of a source for an architecture, without the cache.
///
/// # Errors
/// A missing library; [`CudaError::Compile`] with the compiler's messages.
pub fn compile(source: Source, architecture: &str) -> Result<Vec<u8>> {
    load(Library::Nvrtc)?;
    let broken =
        |log: String| CudaError::Compile { source_name: source.name, architecture: architecture.to_owned(), log };
    let text = format!("{PRELUDE}\n#line 1 \"{}\"\n{}", source.name, source.text);
    let text = CString::new(text).map_err(|e| broken(e.to_string()))?;
    let name = CString::new(source.name).map_err(|e| broken(e.to_string()))?;
    let program = result::create_program(&text, Some(&name))?;
    let options = [format!("--gpu-architecture={architecture}"), "--std=c++17".into(), "-default-device".into()];
    // SAFETY: a program of our own; the options are copied by the call.
    let compiled = unsafe { result::compile_program(program, &options) };
    let machine_code = match compiled {
        Ok(()) => machine_code(program),
        Err(_) => {
            // SAFETY: a program that was compiled, if without success.
            let log = unsafe { result::get_program_log(program) }.unwrap_or_default();
            let log: Vec<u8> = log.into_iter().map(|c| c as u8).take_while(|&c| c != 0).collect();
            Err(broken(String::from_utf8_lossy(&log).into_owned()))
        }
    };
    // SAFETY: made above and destroyed once. Nothing can be done about a failure.
    let _ = unsafe { result::destroy_program(program) };
    machine_code
}

fn machine_code(program: sys::nvrtcProgram) -> Result<Vec<u8>> {
    let mut size = 0;
    // SAFETY: a compiled program; the call writes one number.
    unsafe { sys::nvrtcGetCUBINSize(program, &mut size) }.result()?;
    let mut code = vec![0u8; size];
    // SAFETY: room for the size that NVRTC stated.
    unsafe { sys::nvrtcGetCUBIN(program, code.as_mut_ptr().cast()) }.result()?;
    Ok(code)
}

/// [`compile`] through the cache. Nothing is said where the cache cannot be used: it is only speed.
///
/// # Errors
/// As [`compile`].
pub fn compile_cached(source: Source, architecture: &str) -> Result<Vec<u8>> {
    let Some(folder) = cache_folder() else { return compile(source, architecture) };
    let key = key(source, architecture, version()?);
    let path = folder.join(format!("{}-{architecture}-{key:016x}.cubin", source.name));
    // The last four bytes are the checksum of the others.
    let checked = std::fs::read(&path).ok().and_then(|bytes| {
        let (code, sum) = bytes.split_last_chunk::<4>()?;
        (crc32fast::hash(code) == u32::from_le_bytes(*sum)).then(|| code.to_vec())
    });
    if let Some(code) = checked {
        return Ok(code);
    }
    let code = compile(source, architecture)?;
    let bytes = [&code[..], &crc32fast::hash(&code).to_le_bytes()].concat();
    let _ = std::fs::create_dir_all(&folder);
    let _ = files::write_bytes_atomic(&path, &bytes);
    Ok(code)
}

/// Where machine code and tuning choices are kept: `yolov9/cuda` in the user's cache folder.
pub fn cache_folder() -> Option<PathBuf> {
    files::user_cache_folder().map(|folder| folder.join("cuda"))
}

/// FNV-1a of all that the machine code depends on: the same in every build of this program.
fn key(source: Source, architecture: &str, version: (i32, i32)) -> u64 {
    struct Fnv(u64);
    impl Hasher for Fnv {
        fn finish(&self) -> u64 {
            self.0
        }

        fn write(&mut self, bytes: &[u8]) {
            for &byte in bytes {
                self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3);
            }
        }
    }
    let mut hasher = Fnv(0xCBF2_9CE4_8422_2325);
    for part in [PRELUDE, source.text, architecture] {
        hasher.write(part.as_bytes());
        hasher.write(&[0]);
    }
    hasher.write(&version.0.to_le_bytes());
    hasher.write(&version.1.to_le_bytes());
    hasher.finish()
}
