//! What a pickle describes: inert values in one arena.
//!
//! Values refer to each other by position, so that a value that holds itself is no problem and dropping a deeply
//! nested one does not recurse.

use std::borrow::Cow;

/// Position of a value in its [`Values`].
pub(crate) type Id = u32;

/// One value; texts and bytes are borrowed from the pickle.
#[derive(Debug)]
pub(crate) enum Value<'a> {
    None,
    Bool(bool),
    Int(i64),
    /// An integer beyond 64 bits; no weight file needs its value.
    Wide,
    Float(f64),
    Text(Cow<'a, str>),
    Bytes(Cow<'a, [u8]>),
    List(Vec<Id>),
    Tuple(Vec<Id>),
    Dict(Vec<(Id, Id)>),
    Set(Vec<Id>),
    /// A class or function, by name only.
    Global {
        module: Cow<'a, str>,
        name: Cow<'a, str>,
    },
    /// What a call of `class` with `args` would have made.
    Object(Box<Object>),
    Storage(Box<Storage<'a>>),
    Tensor(Box<Tensor>),
}

/// An instance of a class that is not known here.
#[derive(Debug, Default)]
pub(crate) struct Object {
    pub class: Id,
    /// A tuple.
    pub args: Id,
    /// What the object was filled from: its attributes, mostly.
    pub state: Option<Id>,
    /// Elements, of classes that are lists or sets.
    pub items: Vec<Id>,
    /// Pairs, of classes that are dicts.
    pub pairs: Vec<(Id, Id)>,
}

/// A block of numbers in an entry of the archive.
#[derive(Debug)]
pub(crate) struct Storage<'a> {
    /// Name of the storage class, such as `HalfStorage`, or `UntypedStorage`.
    pub class: Cow<'a, str>,
    /// Name of the entry below `data/`.
    pub key: Cow<'a, str>,
    /// Elements; bytes for an untyped one.
    pub elements: u64,
}

/// A view of a storage. Extents are in elements and not yet checked against the storage.
#[derive(Debug)]
pub(crate) struct Tensor {
    pub storage: Id,
    /// The `torch.float32` or the like of an untyped storage.
    pub dtype: Option<Id>,
    pub offset: u64,
    pub dims: Vec<usize>,
    pub strides: Vec<u64>,
}

/// All values of a pickle.
#[derive(Debug)]
pub(crate) struct Values<'a> {
    all: Vec<Value<'a>>,
    /// How deep each one is nested, counted from its innermost part.
    depths: Vec<u16>,
    /// Tensors among them.
    pub tensors: usize,
}

impl<'a> Values<'a> {
    /// The first values are those that need no more than one copy.
    pub const NONE: Id = 0;
    pub const TRUE: Id = 1;
    pub const FALSE: Id = 2;
    pub const EMPTY_TUPLE: Id = 3;
    /// Deepest nesting.
    pub const MAX_DEPTH: u16 = 1000;

    pub fn new() -> Self {
        let all = vec![Value::None, Value::Bool(true), Value::Bool(false), Value::Tuple(Vec::new())];
        Self { depths: vec![0; all.len()], all, tensors: 0 }
    }

    pub fn add(&mut self, value: Value<'a>) -> Id {
        self.all.push(value);
        self.depths.push(0);
        (self.all.len() - 1) as Id
    }

    /// Notes that `outer` holds `inner`.
    ///
    /// # Errors
    /// Nesting beyond [`Self::MAX_DEPTH`].
    pub fn nest(&mut self, outer: Id, inner: Id) -> Result<(), String> {
        let depth = self.depths[inner as usize] + 1;
        if depth > Self::MAX_DEPTH {
            return Err(format!("its values are nested more than {} deep", Self::MAX_DEPTH));
        }
        let own = &mut self.depths[outer as usize];
        *own = depth.max(*own);
        Ok(())
    }

    pub fn get(&self, id: Id) -> &Value<'a> {
        &self.all[id as usize]
    }

    pub fn get_mut(&mut self, id: Id) -> &mut Value<'a> {
        &mut self.all[id as usize]
    }

    pub fn text(&self, id: Id) -> Option<&str> {
        match self.get(id) {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    pub fn int(&self, id: Id) -> Option<i64> {
        match self.get(id) {
            Value::Int(v) => Some(*v),
            Value::Bool(v) => Some(i64::from(*v)),
            _ => None,
        }
    }

    pub fn is_none(&self, id: Id) -> bool {
        matches!(self.get(id), Value::None)
    }

    /// Elements of a list or tuple.
    pub fn sequence(&self, id: Id) -> Option<&[Id]> {
        match self.get(id) {
            Value::List(items) | Value::Tuple(items) => Some(items),
            _ => None,
        }
    }

    /// Pairs of a dict, or of an object whose class is one.
    pub fn pairs(&self, id: Id) -> Option<&[(Id, Id)]> {
        match self.get(id) {
            Value::Dict(pairs) => Some(pairs),
            Value::Object(object) if !object.pairs.is_empty() => Some(&object.pairs),
            _ => None,
        }
    }

    /// The value under a text key; where it comes twice, the later one, as in Python.
    pub fn entry(&self, dict: Id, key: &str) -> Option<Id> {
        self.pairs(dict)?.iter().rev().find(|(k, _)| self.text(*k) == Some(key)).map(|(_, v)| *v)
    }

    /// An attribute of an object.
    pub fn attribute(&self, object: Id, name: &str) -> Option<Id> {
        let Value::Object(object) = self.get(object) else { return None };
        let state = object.state?;
        match self.get(state) {
            Value::Dict(_) => self.entry(state, name),
            // Attributes, and those that lie in slots.
            Value::Tuple(parts) => parts.iter().find_map(|&part| self.entry(part, name)),
            _ => None,
        }
    }

    /// Full name of a class or function.
    pub fn global(&self, id: Id) -> Option<(&str, &str)> {
        match self.get(id) {
            Value::Global { module, name } => Some((module, name)),
            _ => None,
        }
    }

    /// What the value is, for messages.
    pub fn describe(&self, id: Id) -> String {
        match self.get(id) {
            Value::None => "None".into(),
            Value::Bool(_) => "a bool".into(),
            Value::Int(_) | Value::Wide => "an int".into(),
            Value::Float(_) => "a float".into(),
            Value::Text(_) => "a text".into(),
            Value::Bytes(_) => "bytes".into(),
            Value::List(items) => format!("a list of {}", items.len()),
            Value::Tuple(items) => format!("a tuple of {}", items.len()),
            Value::Set(_) => "a set".into(),
            Value::Dict(pairs) => {
                let keys: Vec<&str> = pairs.iter().filter_map(|(k, _)| self.text(*k)).take(5).collect();
                format!("a dict of {} ({})", pairs.len(), shown(&keys.join(", ")))
            }
            Value::Global { module, name } => shown(&format!("{module}.{name}")),
            Value::Object(object) => match self.global(object.class) {
                Some((module, name)) => shown(&format!("{module}.{name}")),
                None => "an object".into(),
            },
            Value::Storage(_) => "a storage".into(),
            Value::Tensor(_) => "a tensor".into(),
        }
    }
}

/// Text of a file within a message: short, and without control characters.
pub(crate) fn shown(text: &str) -> String {
    let mut short: String = text.chars().take(120).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if text.chars().nth(120).is_some() {
        short.push('…');
    }
    short
}
