//! Names of classes and functions that no weight file needs and that a hostile one would call.
//!
//! Nothing of a pickle is ever run here, so this is no guard but a service: such a file is not to be kept, and not
//! to be given to a program that does run it.

/// Modules of which every member is refused, with what lies below them.
const MODULES: &[&str] = &[
    "asyncio",
    "bdb",
    "cProfile",
    "code",
    "codeop",
    "commands",
    "ctypes",
    "ftplib",
    "http",
    "httplib",
    "importlib",
    "imp",
    "marshal",
    "multiprocessing",
    "nt",
    "os",
    "pdb",
    "pip",
    "popen2",
    "posix",
    "profile",
    "pty",
    "requests",
    "runpy",
    "shutil",
    "signal",
    "smtplib",
    "socket",
    "subprocess",
    "sys",
    "telnetlib",
    "tempfile",
    "timeit",
    "urllib",
    "urllib2",
    "webbrowser",
    "_pickle",
    "pickle",
    "cPickle",
    "_posixsubprocess",
    "_winapi",
    "winreg",
];

/// Members of the builtins that are refused.
const BUILTINS: &[&str] = &[
    "__import__",
    "breakpoint",
    "compile",
    "delattr",
    "eval",
    "exec",
    "execfile",
    "exit",
    "file",
    "globals",
    "input",
    "locals",
    "open",
    "quit",
    "raw_input",
    "reload",
    "setattr",
    "vars",
];

/// Single functions.
const FUNCTIONS: &[(&str, &str)] = &[
    ("numpy", "load"),
    ("numpy.f2py.crackfortran", "getlincoef"),
    ("numpy.testing._private.utils", "runstring"),
    ("operator", "attrgetter"),
    ("operator", "methodcaller"),
    ("torch", "load"),
    ("torch.hub", "load"),
    ("torch.serialization", "load"),
    ("types", "CodeType"),
    ("types", "FunctionType"),
];

/// True for what is refused by name.
pub(crate) fn is_dangerous(module: &str, name: &str) -> bool {
    let root = module.split('.').next().unwrap_or(module);
    let builtin = matches!(module, "builtins" | "__builtin__" | "__builtins__");
    // Protocol 4 can reach a member of a member: `builtins`, `eval.__call__`.
    let first = name.split('.').next().unwrap_or(name);
    MODULES.contains(&root)
        || builtin && BUILTINS.contains(&first)
        || FUNCTIONS.iter().any(|&(m, n)| m == module && n == first)
        || name.split('.').any(|part| matches!(part, "__globals__" | "__subclasses__" | "__builtins__" | "__import__"))
}
