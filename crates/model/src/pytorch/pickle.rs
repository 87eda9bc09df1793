//! The pickle machine: opcodes of protocols 0 to 5 to [`Values`]. Nothing is imported or called.
//!
//! Opcodes and their arguments are those of the documentation in Python's `pickletools`.

use super::calls;
use super::danger::is_dangerous;
use super::value::{Id, Object, Value, Values, shown};
use std::borrow::Cow;

/// Longest pickle, in bytes.
pub(crate) const MAX_BYTES: u64 = 64 << 20;
/// Most opcodes. The largest models need about a million.
const MAX_OPCODES: usize = 4 << 20;
/// Longest name of a class or of its module, in bytes.
const MAX_NAME: usize = 1024;
/// Most values kept for later use.
const MAX_MEMO: usize = 4 << 20;

type Result<T> = std::result::Result<T, String>;

/// The values of a pickle and its result among them.
pub(crate) fn parse(bytes: &[u8]) -> Result<(Values<'_>, Id)> {
    let mut machine =
        Machine { input: Input { bytes, at: 0 }, values: Values::new(), stack: vec![], marks: vec![], memo: vec![] };
    for _ in 0..MAX_OPCODES {
        let at = machine.input.at;
        let opcode = machine.input.byte()?;
        if opcode == b'.' {
            let root = machine.pop()?;
            return Ok((machine.values, root));
        }
        // What a file holds is worth a name; where its pickle is broken, the place.
        machine
            .step(opcode)
            .map_err(|e| if e.starts_with("holds ") { e } else { format!("{e} (byte {at} of its pickle)") })?;
    }
    Err(format!("its pickle has more than {MAX_OPCODES} steps"))
}

/// The bytes of a pickle.
struct Input<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Input<'a> {
    fn take(&mut self, n: usize) -> Result<&'a [u8]> {
        let rest = &self.bytes[self.at..];
        let taken = rest.get(..n).ok_or("its pickle ends too early")?;
        self.at += n;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        Ok(self.take(N)?.try_into().expect("as many bytes as asked for"))
    }

    fn byte(&mut self) -> Result<u8> {
        Ok(self.array::<1>()?[0])
    }

    fn u16(&mut self) -> Result<usize> {
        Ok(u16::from_le_bytes(self.array()?).into())
    }

    fn u32(&mut self) -> Result<usize> {
        Ok(u32::from_le_bytes(self.array()?) as usize)
    }

    fn length64(&mut self) -> Result<usize> {
        usize::try_from(u64::from_le_bytes(self.array()?)).map_err(|_| "its pickle ends too early".into())
    }

    /// A line of the text protocol, without its end.
    fn line(&mut self) -> Result<&'a [u8]> {
        let rest = &self.bytes[self.at..];
        let end = rest.iter().position(|&b| b == b'\n').ok_or("its pickle ends too early")?;
        self.at += end + 1;
        Ok(rest[..end].strip_suffix(b"\r").unwrap_or(&rest[..end]))
    }

    fn text_line(&mut self) -> Result<&'a str> {
        std::str::from_utf8(self.line()?).map_err(|_| "its pickle has a line that is no text".into())
    }

    fn number_line(&mut self) -> Result<usize> {
        let line = self.text_line()?;
        line.trim().parse().map_err(|_| format!("its pickle has '{}' in place of a number", shown(line)))
    }
}

struct Machine<'a> {
    input: Input<'a>,
    values: Values<'a>,
    stack: Vec<Id>,
    marks: Vec<usize>,
    memo: Vec<Option<Id>>,
}

impl<'a> Machine<'a> {
    fn pop(&mut self) -> Result<Id> {
        // What lies below the last mark is not to be touched.
        if self.stack.len() <= self.marks.last().copied().unwrap_or(0) {
            return Err("its pickle takes a value where there is none".into());
        }
        self.stack.pop().ok_or_else(|| "its pickle takes a value where there is none".into())
    }

    fn top(&self) -> Result<Id> {
        self.stack.last().copied().ok_or_else(|| "its pickle takes a value where there is none".into())
    }

    fn pop_mark(&mut self) -> Result<Vec<Id>> {
        let mark = self.marks.pop().ok_or("its pickle goes back to a mark where there is none")?;
        Ok(self.stack.split_off(mark.min(self.stack.len())))
    }

    fn push(&mut self, value: Value<'a>) {
        let id = self.values.add(value);
        self.stack.push(id);
    }

    fn push_bytes(&mut self, bytes: &'a [u8]) {
        self.push(Value::Bytes(Cow::Borrowed(bytes)));
    }

    /// Text; bytes that are no UTF-8 (lone surrogates, old texts) are replaced.
    fn push_text(&mut self, bytes: &'a [u8]) {
        self.push(Value::Text(String::from_utf8_lossy(bytes)));
    }

    /// Pushes a container that holds `items`.
    fn push_with(&mut self, value: Value<'a>, items: &[Id]) -> Result<()> {
        let id = self.values.add(value);
        items.iter().try_for_each(|&item| self.values.nest(id, item))?;
        self.stack.push(id);
        Ok(())
    }

    fn push_tuple(&mut self, items: Vec<Id>) -> Result<()> {
        if items.is_empty() {
            self.stack.push(Values::EMPTY_TUPLE);
            return Ok(());
        }
        let id = self.values.add(Value::Tuple(Vec::new()));
        items.iter().try_for_each(|&item| self.values.nest(id, item))?;
        *self.values.get_mut(id) = Value::Tuple(items);
        self.stack.push(id);
        Ok(())
    }

    fn pop_n(&mut self, n: usize) -> Result<Vec<Id>> {
        let mut items = (0..n).map(|_| self.pop()).collect::<Result<Vec<_>>>()?;
        items.reverse();
        Ok(items)
    }

    fn append(&mut self, list: Id, new: Vec<Id>) -> Result<()> {
        new.iter().try_for_each(|&item| self.values.nest(list, item))?;
        match self.values.get_mut(list) {
            Value::List(items) | Value::Set(items) => items.extend(new),
            Value::Object(object) => object.items.extend(new),
            _ => return Err(format!("its pickle appends to {}", self.values.describe(list))),
        }
        Ok(())
    }

    fn set_items(&mut self, dict: Id, new: &[Id]) -> Result<()> {
        if !new.len().is_multiple_of(2) {
            return Err("its pickle has a key without a value".into());
        }
        new.iter().try_for_each(|&item| self.values.nest(dict, item))?;
        let new = new.chunks_exact(2).map(|pair| (pair[0], pair[1]));
        match self.values.get_mut(dict) {
            Value::Dict(pairs) => pairs.extend(new),
            Value::Object(object) => object.pairs.extend(new),
            _ => return Err(format!("its pickle sets items of {}", self.values.describe(dict))),
        }
        Ok(())
    }

    fn put(&mut self, key: usize) -> Result<()> {
        if key >= MAX_MEMO {
            return Err(format!("its pickle numbers a value {key}, at most {MAX_MEMO} are kept"));
        }
        let top = self.top()?;
        if key >= self.memo.len() {
            self.memo.resize(key + 1, None);
        }
        self.memo[key] = Some(top);
        Ok(())
    }

    fn fetch(&mut self, key: usize) -> Result<()> {
        let id = self.memo.get(key).copied().flatten().ok_or("its pickle asks for a value that it did not keep")?;
        self.stack.push(id);
        Ok(())
    }

    fn global(&mut self, module: Cow<'a, str>, name: Cow<'a, str>) -> Result<Id> {
        if is_dangerous(&module, &name) {
            return Err(format!("holds a call of {}.{}, which no weight file needs", shown(&module), shown(&name)));
        }
        Ok(self.values.add(Value::Global { module, name }))
    }

    fn global_line(&mut self) -> Result<Id> {
        let (module, name) = (self.input.text_line()?, self.input.text_line()?);
        self.global(module.into(), name.into())
    }

    /// An instance of a class that is not known here.
    fn object(&mut self, class: Id, args: Id) -> Result<Id> {
        let id = self.values.add(Value::Object(Box::new(Object { class, args, ..Object::default() })));
        self.values.nest(id, class)?;
        self.values.nest(id, args)?;
        Ok(id)
    }

    fn object_of(&mut self, class: Id, args: Vec<Id>) -> Result<()> {
        self.push_tuple(args)?;
        let args = self.pop()?;
        let id = self.object(class, args)?;
        self.stack.push(id);
        Ok(())
    }

    fn reduce(&mut self) -> Result<()> {
        let (args, callable) = (self.pop()?, self.pop()?);
        if !matches!(self.values.get(args), Value::Tuple(_)) {
            return Err("its pickle calls something without a tuple of arguments".into());
        }
        // Protocols 0 and 1 make objects by a function whose first argument is their class.
        let callable = match (self.values.global(callable), self.values.sequence(args)) {
            (Some(("copy_reg" | "copyreg", "_reconstructor")), Some(&[class, ..])) => class,
            _ => callable,
        };
        let id = match calls::known(&mut self.values, callable, args)? {
            Some(id) => id,
            None => self.object(callable, args)?,
        };
        self.stack.push(id);
        Ok(())
    }

    fn build(&mut self) -> Result<()> {
        let (state, target) = (self.pop()?, self.top()?);
        self.values.nest(target, state)?;
        // Attributes of dicts and tensors, such as the versions of modules, are of no use here.
        if let Value::Object(object) = self.values.get_mut(target) {
            object.state = Some(state);
        }
        Ok(())
    }

    fn long(&mut self, length: usize) -> Result<()> {
        let raw = self.input.take(length)?;
        let value = match raw.last() {
            None => Value::Int(0),
            Some(last) if raw.len() <= 8 => {
                let mut full = [if last & 0x80 == 0 { 0 } else { 0xFF }; 8];
                full[..raw.len()].copy_from_slice(raw);
                Value::Int(i64::from_le_bytes(full))
            }
            Some(_) => Value::Wide,
        };
        self.push(value);
        Ok(())
    }

    /// One opcode other than STOP.
    fn step(&mut self, opcode: u8) -> Result<()> {
        match opcode {
            0x80 => match self.input.byte()? {
                0..=5 => {}
                version => return Err(format!("its pickle has the protocol {version}, known are 0 to 5")),
            },
            // FRAME: only tells how to read ahead.
            0x95 => drop(self.input.take(8)?),
            b'(' => self.marks.push(self.stack.len()),
            b'0' if self.marks.last() == Some(&self.stack.len()) => drop(self.marks.pop()),
            b'0' => drop(self.pop()?),
            b'1' => drop(self.pop_mark()?),
            b'2' => self.stack.push(self.top()?),
            b'N' => self.stack.push(Values::NONE),
            0x88 => self.stack.push(Values::TRUE),
            0x89 => self.stack.push(Values::FALSE),
            b'I' => match self.input.text_line()? {
                "01" => self.stack.push(Values::TRUE),
                "00" => self.stack.push(Values::FALSE),
                line => self.push(line.trim().parse().map_or(Value::Wide, Value::Int)),
            },
            b'L' => {
                let line = self.input.text_line()?.trim();
                self.push(line.strip_suffix('L').unwrap_or(line).parse().map_or(Value::Wide, Value::Int));
            }
            b'J' => {
                let value = i32::from_le_bytes(self.input.array()?);
                self.push(Value::Int(value.into()));
            }
            b'K' => {
                let value = self.input.byte()?;
                self.push(Value::Int(value.into()));
            }
            b'M' => {
                let value = self.input.u16()?;
                self.push(Value::Int(value as i64));
            }
            0x8a => {
                let length = self.input.byte()?;
                self.long(length.into())?;
            }
            0x8b => {
                let length = self.input.u32()?;
                self.long(length)?;
            }
            b'F' => {
                let line = self.input.text_line()?;
                let value = line.trim().parse().map_err(|_| format!("'{}' is no number", shown(line)))?;
                self.push(Value::Float(value));
            }
            b'G' => {
                let value = f64::from_be_bytes(self.input.array()?);
                self.push(Value::Float(value));
            }
            b'S' => {
                let line = self.input.text_line()?;
                self.push(Value::Text(unquoted(line).into()));
            }
            b'V' => {
                // Protocol 0 writes Latin-1.
                let line = self.input.line()?;
                match line.is_ascii() {
                    true => self.push_text(line),
                    false => self.push(Value::Text(line.iter().map(|&b| char::from(b)).collect())),
                }
            }
            b'T' | b'X' | b'B' => {
                let length = self.input.u32()?;
                let raw = self.input.take(length)?;
                if opcode == b'B' { self.push_bytes(raw) } else { self.push_text(raw) }
            }
            b'U' | 0x8c | b'C' => {
                let length = self.input.byte()?;
                let raw = self.input.take(length.into())?;
                if opcode == b'C' { self.push_bytes(raw) } else { self.push_text(raw) }
            }
            // BINUNICODE8, BINBYTES8, BYTEARRAY8.
            0x8d | 0x8e | 0x96 => {
                let length = self.input.length64()?;
                let raw = self.input.take(length)?;
                if opcode == 0x8d { self.push_text(raw) } else { self.push_bytes(raw) }
            }
            // READONLY_BUFFER changes nothing here.
            0x98 => drop(self.top()?),
            b']' => self.push(Value::List(Vec::new())),
            b'l' => {
                let items = self.pop_mark()?;
                self.push(Value::List(Vec::new()));
                self.append(self.top()?, items)?;
            }
            b'a' => {
                let item = self.pop()?;
                self.append(self.top()?, vec![item])?;
            }
            // APPENDS, ADDITEMS.
            b'e' | 0x90 => {
                let items = self.pop_mark()?;
                self.append(self.top()?, items)?;
            }
            0x8f => self.push(Value::Set(Vec::new())),
            0x91 => {
                let items = self.pop_mark()?;
                self.push(Value::Set(Vec::new()));
                self.append(self.top()?, items)?;
            }
            b')' => self.stack.push(Values::EMPTY_TUPLE),
            b't' => {
                let items = self.pop_mark()?;
                self.push_tuple(items)?;
            }
            0x85..=0x87 => {
                let items = self.pop_n(usize::from(opcode - 0x84))?;
                self.push_tuple(items)?;
            }
            b'}' => self.push(Value::Dict(Vec::new())),
            b'd' => {
                let items = self.pop_mark()?;
                self.push(Value::Dict(Vec::new()));
                self.set_items(self.top()?, &items)?;
            }
            b's' => {
                let pair = self.pop_n(2)?;
                self.set_items(self.top()?, &pair)?;
            }
            b'u' => {
                let items = self.pop_mark()?;
                self.set_items(self.top()?, &items)?;
            }
            b'g' => {
                let key = self.input.number_line()?;
                self.fetch(key)?;
            }
            b'h' => {
                let key = self.input.byte()?;
                self.fetch(key.into())?;
            }
            b'j' => {
                let key = self.input.u32()?;
                self.fetch(key)?;
            }
            b'p' => {
                let key = self.input.number_line()?;
                self.put(key)?;
            }
            b'q' => {
                let key = self.input.byte()?;
                self.put(key.into())?;
            }
            b'r' => {
                let key = self.input.u32()?;
                self.put(key)?;
            }
            0x94 => self.put(self.memo.len())?,
            b'c' => {
                let id = self.global_line()?;
                self.stack.push(id);
            }
            0x93 => {
                let (name, module) = (self.pop()?, self.pop()?);
                let (Value::Text(module), Value::Text(name)) = (self.values.get(module), self.values.get(name)) else {
                    return Err("its pickle names a class by something that is no text".into());
                };
                // Before the copy: one long text could be named over and over.
                if module.len().max(name.len()) > MAX_NAME {
                    return Err(format!("its pickle names a class {}", shown(name)));
                }
                let id = self.global(module.clone(), name.clone())?;
                self.stack.push(id);
            }
            b'R' => self.reduce()?,
            0x81 => {
                let (args, class) = (self.pop()?, self.pop()?);
                let id = self.object(class, args)?;
                self.stack.push(id);
            }
            0x92 => {
                let (_keywords, args, class) = (self.pop()?, self.pop()?, self.pop()?);
                let id = self.object(class, args)?;
                self.stack.push(id);
            }
            b'i' => {
                let class = self.global_line()?;
                let args = self.pop_mark()?;
                self.object_of(class, args)?;
            }
            b'o' => {
                let mut args = self.pop_mark()?;
                if args.is_empty() {
                    return Err("its pickle makes an object of no class".into());
                }
                let class = args.remove(0);
                self.object_of(class, args)?;
            }
            b'b' => self.build()?,
            b'Q' => {
                let id = self.pop()?;
                let storage = calls::storage(&self.values, id)?;
                self.push_with(storage, &[id])?;
            }
            b'P' | 0x82..=0x84 | 0x97 => {
                return Err(format!("its pickle uses opcode {opcode:#04x}, which PyTorch's files do not"));
            }
            _ => return Err(format!("its pickle has the unknown opcode {opcode:#04x}")),
        }
        Ok(())
    }
}

/// A quoted text of protocol 0. Escapes stay as they are: names have none.
fn unquoted(line: &str) -> &str {
    let line = line.trim();
    let inner = ['\'', '"'].iter().find_map(|&q| line.strip_prefix(q)?.strip_suffix(q));
    inner.unwrap_or(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A value as Python would write it.
    fn show(values: &Values, id: Id) -> String {
        let list = |items: &[Id]| items.iter().map(|&i| show(values, i)).collect::<Vec<_>>().join(",");
        match values.get(id) {
            Value::Int(v) => v.to_string(),
            Value::Float(v) => v.to_string(),
            Value::Text(v) => v.to_string(),
            Value::Bool(v) => v.to_string(),
            Value::None => "None".into(),
            Value::Wide => "wide".into(),
            Value::List(items) => format!("[{}]", list(items)),
            Value::Tuple(items) => format!("({})", list(items)),
            Value::Set(items) => format!("{{{}}}", list(items)),
            Value::Dict(pairs) => {
                pairs.iter().map(|&(k, v)| format!("{{{}:{}}}", show(values, k), show(values, v))).collect()
            }
            Value::Object(object) => {
                format!("{}{}", values.describe(id), object.state.map_or(String::new(), |s| show(values, s)))
            }
            _ => values.describe(id),
        }
    }

    #[test]
    fn every_protocol_gives_the_same_values() {
        let want = "[1,-70000,8589934592,wide,2.5,None,true,false,a\u{e9},(),(1),(1,2),(1,2,3,4),{k:[1]},{7},{8},m.C{x:3},300,a\u{e9}]";
        let pickles: [&[u8]; 6] = [
            b"(lp0\x0aI1\x0aaI-70000\x0aaL8589934592L\x0aaL1180591620717411303424L\x0aaF2.5\x0aaNaI01\x0aaI00\x0aaVa\xe9\x0ap1\x0aa(ta(I1\x0atp2\x0aa(I1\x0aI2\x0atp3\x0aa(I1\x0aI2\x0aI3\x0aI4\x0atp4\x0aa(dp5\x0aVk\x0ap6\x0a(lp7\x0aI1\x0aasac__builtin__\x0aset\x0ap8\x0a((lp9\x0aI7\x0aatp10\x0aRp11\x0aac__builtin__\x0afrozenset\x0ap12\x0a((lp13\x0aI8\x0aatp14\x0aRp15\x0aaccopy_reg\x0a_reconstructor\x0ap16\x0a(cm\x0aC\x0ap17\x0ac__builtin__\x0aobject\x0ap18\x0aNtp19\x0aRp20\x0a(dp21\x0aVx\x0ap22\x0aI3\x0asbaI300\x0aag1\x0aa.",
            b"]q\x00(K\x01J\x90\xee\xfe\xffL8589934592L\x0aL1180591620717411303424L\x0aG@\x04\x00\x00\x00\x00\x00\x00NI01\x0aI00\x0aX\x03\x00\x00\x00a\xc3\xa9q\x01)(K\x01tq\x02(K\x01K\x02tq\x03(K\x01K\x02K\x03K\x04tq\x04}q\x05X\x01\x00\x00\x00kq\x06]q\x07K\x01asc__builtin__\x0aset\x0aq\x08(]q\x09K\x07atq\x0aRq\x0bc__builtin__\x0afrozenset\x0aq\x0c(]q\x0dK\x08atq\x0eRq\x0fccopy_reg\x0a_reconstructor\x0aq\x10(cm\x0aC\x0aq\x11c__builtin__\x0aobject\x0aq\x12Ntq\x13Rq\x14}q\x15X\x01\x00\x00\x00xq\x16K\x03sbM,\x01h\x01e.",
            b"\x80\x02]q\x00(K\x01J\x90\xee\xfe\xff\x8a\x05\x00\x00\x00\x00\x02\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x00@G@\x04\x00\x00\x00\x00\x00\x00N\x88\x89X\x03\x00\x00\x00a\xc3\xa9q\x01)K\x01\x85q\x02K\x01K\x02\x86q\x03(K\x01K\x02K\x03K\x04tq\x04}q\x05X\x01\x00\x00\x00kq\x06]q\x07K\x01asc__builtin__\x0aset\x0aq\x08]q\x09K\x07a\x85q\x0aRq\x0bc__builtin__\x0afrozenset\x0aq\x0c]q\x0dK\x08a\x85q\x0eRq\x0fcm\x0aC\x0aq\x10)\x81q\x11}q\x12X\x01\x00\x00\x00xq\x13K\x03sbM,\x01h\x01e.",
            b"\x80\x03]q\x00(K\x01J\x90\xee\xfe\xff\x8a\x05\x00\x00\x00\x00\x02\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x00@G@\x04\x00\x00\x00\x00\x00\x00N\x88\x89X\x03\x00\x00\x00a\xc3\xa9q\x01)K\x01\x85q\x02K\x01K\x02\x86q\x03(K\x01K\x02K\x03K\x04tq\x04}q\x05X\x01\x00\x00\x00kq\x06]q\x07K\x01ascbuiltins\x0aset\x0aq\x08]q\x09K\x07a\x85q\x0aRq\x0bcbuiltins\x0afrozenset\x0aq\x0c]q\x0dK\x08a\x85q\x0eRq\x0fcm\x0aC\x0aq\x10)\x81q\x11}q\x12X\x01\x00\x00\x00xq\x13K\x03sbM,\x01h\x01e.",
            b"\x80\x04\x95y\x00\x00\x00\x00\x00\x00\x00]\x94(K\x01J\x90\xee\xfe\xff\x8a\x05\x00\x00\x00\x00\x02\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x00@G@\x04\x00\x00\x00\x00\x00\x00N\x88\x89\x8c\x03a\xc3\xa9\x94)K\x01\x85\x94K\x01K\x02\x86\x94(K\x01K\x02K\x03K\x04t\x94}\x94\x8c\x01k\x94]\x94K\x01as\x8f\x94(K\x07\x90(K\x08\x91\x94\x8c\x01m\x94\x8c\x01C\x94\x93\x94)\x81\x94}\x94\x8c\x01x\x94K\x03sbM,\x01h\x01e.",
            b"\x80\x05\x95y\x00\x00\x00\x00\x00\x00\x00]\x94(K\x01J\x90\xee\xfe\xff\x8a\x05\x00\x00\x00\x00\x02\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x00@G@\x04\x00\x00\x00\x00\x00\x00N\x88\x89\x8c\x03a\xc3\xa9\x94)K\x01\x85\x94K\x01K\x02\x86\x94(K\x01K\x02K\x03K\x04t\x94}\x94\x8c\x01k\x94]\x94K\x01as\x8f\x94(K\x07\x90(K\x08\x91\x94\x8c\x01m\x94\x8c\x01C\x94\x93\x94)\x81\x94}\x94\x8c\x01x\x94K\x03sbM,\x01h\x01e.",
        ];
        for (protocol, pickle) in pickles.iter().enumerate() {
            let (values, root) = parse(pickle).unwrap();
            assert_eq!(show(&values, root), want, "protocol {protocol}");
        }
    }
}
