//! Flags of the reference trainer that this program does not have: each is ignored with a warning where that is
//! harmless, or refused with the reason.

use crate::console::warning;
use crate::failure::Failure;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use std::marker::PhantomData;

/// What follows a flag.
#[derive(Clone, Copy, Debug)]
pub enum Values {
    None,
    One,
    /// None or one.
    Optional,
}

/// What happens when a flag is given. The text completes `--flag: …`.
#[derive(Clone, Copy, Debug)]
pub enum Answer {
    Ignored(&'static str),
    Refused(&'static str, &'static str),
}

/// One flag.
#[derive(Debug)]
pub struct Flag {
    pub name: &'static str,
    pub values: Values,
    pub answer: Answer,
}

impl Flag {
    pub const fn ignored(name: &'static str, values: Values, why: &'static str) -> Self {
        Self { name, values, answer: Answer::Ignored(why) }
    }

    pub const fn refused(name: &'static str, values: Values, why: &'static str, hint: &'static str) -> Self {
        Self { name, values, answer: Answer::Refused(why, hint) }
    }
}

/// The flags of one command.
pub trait Table {
    const FLAGS: &'static [Flag];
}

/// The flags of a [`Table`] that were typed. To be flattened into a command's arguments; they stay out of its help.
#[derive(Debug)]
pub struct ReferenceFlags<T> {
    typed: Vec<&'static Flag>,
    table: PhantomData<T>,
}

impl<T: Table> ReferenceFlags<T> {
    /// Warns about ignored flags.
    ///
    /// # Errors
    /// The first flag that is refused.
    pub fn answer(&self) -> Result<(), Failure> {
        for flag in &self.typed {
            if let Answer::Refused(why, hint) = flag.answer {
                return Err(Failure::usage(format!("--{}: {why}", flag.name), hint));
            }
        }
        for flag in &self.typed {
            if let Answer::Ignored(why) = flag.answer {
                warning(&format!("--{} is ignored: {why}", flag.name));
            }
        }
        Ok(())
    }
}

impl<T: Table> Args for ReferenceFlags<T> {
    fn augment_args(command: Command) -> Command {
        T::FLAGS.iter().fold(command, |command, flag| {
            let argument = Arg::new(flag.name).long(flag.name).hide(true);
            command.arg(match flag.values {
                Values::None => argument.action(ArgAction::SetTrue),
                Values::One => argument.num_args(1).allow_hyphen_values(true),
                Values::Optional => argument.num_args(0..=1).default_missing_value(""),
            })
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<T: Table> FromArgMatches for ReferenceFlags<T> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let typed = |flag: &&Flag| matches.value_source(flag.name) == Some(ValueSource::CommandLine);
        Ok(Self { typed: T::FLAGS.iter().filter(typed).collect(), table: PhantomData })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}
