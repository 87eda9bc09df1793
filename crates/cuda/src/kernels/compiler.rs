//! CUDA C++ to machine code: NVRTC, and a cache of what it made.
//!
//! A kernel's source has no headers from the user's machine. Its machine code is kept in the user's cache folder under
//! a hash of the source, the options, the architecture and NVRTC's version; a damaged entry is compiled again.

use crate::error::{CudaError, Result};
use crate::libraries::{Library, functions};
use std::ffi::{CString, c_char, c_int, c_void};
use std::hash::Hasher;
use std::path::PathBuf;

/// What comes before every source.
const PRELUDE: &str = include_str!("prelude.cuh");

/// `nvrtcProgram`.
type Program = *mut c_void;

functions! {
    /// NVRTC's functions, as its header declares them, except that results are numbers.
    struct Api of Library::Nvrtc;
    nvrtcVersion(*mut c_int, *mut c_int) -> u32;
    nvrtcCreateProgram(
        *mut Program, *const c_char, *const c_char, c_int, *const *const c_char, *const *const c_char
    ) -> u32;
    nvrtcDestroyProgram(*mut Program) -> u32;
    nvrtcCompileProgram(Program, c_int, *const *const c_char) -> u32;
    nvrtcGetProgramLogSize(Program, *mut usize) -> u32;
    nvrtcGetProgramLog(Program, *mut c_char) -> u32;
    nvrtcGetCUBINSize(Program, *mut usize) -> u32;
    nvrtcGetCUBIN(Program, *mut c_char) -> u32;
}

fn check(call: &'static str, code: u32) -> Result<()> {
    if code == 0 { Ok(()) } else { Err(CudaError::Nvrtc { call, code }) }
}

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
    let (mut major, mut minor) = (0, 0);
    // SAFETY: two numbers that the call writes.
    check("nvrtcVersion", unsafe { (Api::get()?.nvrtcVersion)(&mut major, &mut minor) })?;
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
    let api = Api::get()?;
    let broken =
        |log: String| CudaError::Compile { source_name: source.name, architecture: architecture.to_owned(), log };
    let string = |text: String| CString::new(text).map_err(|e| broken(e.to_string()));
    let text = string(format!("{PRELUDE}\n#line 1 \"{}\"\n{}", source.name, source.text))?;
    let name = string(source.name.to_owned())?;
    let options = [
        string(format!("--gpu-architecture={architecture}"))?,
        string("--std=c++17".to_owned())?,
        string("-default-device".to_owned())?,
    ];
    let options = options.each_ref().map(|option| option.as_ptr());
    let (none, mut program) = (std::ptr::null(), std::ptr::null_mut());
    // SAFETY: strings that outlive the call, which copies them, and no headers.
    let status = unsafe { (api.nvrtcCreateProgram)(&mut program, text.as_ptr(), name.as_ptr(), 0, none, none) };
    check("nvrtcCreateProgram", status)?;
    // SAFETY: a program of our own; the options are copied by the call.
    let status = unsafe { (api.nvrtcCompileProgram)(program, options.len() as c_int, options.as_ptr()) };
    let machine_code = match status {
        0 => bytes(program, ("nvrtcGetCUBIN", api.nvrtcGetCUBINSize, api.nvrtcGetCUBIN)),
        _ => {
            let log = bytes(program, ("nvrtcGetProgramLog", api.nvrtcGetProgramLogSize, api.nvrtcGetProgramLog));
            let log: Vec<u8> = log.unwrap_or_default().into_iter().take_while(|&c| c != 0).collect();
            match log.is_empty() {
                true => check("nvrtcCompileProgram", status).map(|()| Vec::new()),
                false => Err(broken(String::from_utf8_lossy(&log).into_owned())),
            }
        }
    };
    // SAFETY: made above and destroyed once. Nothing can be done about a failure.
    let _ = unsafe { (api.nvrtcDestroyProgram)(&mut program) };
    machine_code
}

type Size = unsafe extern "C" fn(Program, *mut usize) -> u32;
type Get = unsafe extern "C" fn(Program, *mut c_char) -> u32;

/// What a compiled program has to say: its machine code or the compiler's messages.
fn bytes(program: Program, (call, size, get): (&'static str, Size, Get)) -> Result<Vec<u8>> {
    let mut count = 0;
    // SAFETY: a compiled program; the call writes one number.
    check(call, unsafe { size(program, &mut count) })?;
    let mut bytes = vec![0u8; count];
    // SAFETY: room for the size that NVRTC stated.
    check(call, unsafe { get(program, bytes.as_mut_ptr().cast()) })?;
    Ok(bytes)
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
