//! Files beside a model that hold contents of its tensors.

use std::fmt;
use std::fs;
use std::path::{Component, Path, PathBuf};

/// A file that holds contents of tensors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExternalFile {
    /// As the model names it.
    pub location: String,
    /// The first tensor that lies in it.
    pub tensor: String,
    /// How many bytes it has to have, as far as the model says, ...
    pub bytes: u64,
    /// ... and the tensor that lies there last.
    pub last: String,
    /// Where it should be, if the model came from a file.
    pub path: Option<PathBuf>,
}

/// Why nobody can read a tensor from a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// There is no such file.
    Missing,
    /// It is a folder, say.
    NotAFile,
    /// It has fewer bytes than it has to have.
    Ends(u64),
}

impl ExternalFile {
    /// What is known to be wrong with it. Reading the graph does not need it; running it does.
    pub fn fault(&self) -> Option<Fault> {
        let path = self.path.as_ref()?;
        let Ok(found) = fs::metadata(path) else {
            return Some(Fault::Missing);
        };
        if !found.is_file() {
            return Some(Fault::NotAFile);
        }
        (found.len() < self.bytes).then_some(Fault::Ends(found.len()))
    }
}

/// Data files that would not be found beside the output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unresolved {
    /// The folder of the model that was read.
    pub folder: Option<PathBuf>,
    /// Where each is and where it would be looked for.
    pub files: Vec<(ExternalFile, PathBuf)>,
}

impl fmt::Display for Unresolved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 3;
        f.write_str("the model's external data would not be found beside the output; ")?;
        if let Some(folder) = &self.folder {
            write!(f, "write the output into {}", folder.display())?;
        }
        // A copy at a place that the location only reaches by leaving the folder is nothing to advise: what loads the
        // model may refuse to look there.
        let outside = self
            .files
            .iter()
            .find(|(file, _)| leaves_folder(&file.location));
        if let Some((file, _)) = outside {
            let location = &file.location;
            return match self.folder {
                Some(_) => write!(
                    f,
                    ": the location {location:?} leads out of the model's folder"
                ),
                None => write!(
                    f,
                    "the location {location:?} leads out of the model's folder"
                ),
            };
        }
        f.write_str(match self.folder {
            Some(_) => ", or first copy ",
            None => "first put there ",
        })?;
        for (position, (file, target)) in self.files.iter().take(SHOWN).enumerate() {
            f.write_str(if position == 0 { "" } else { ", " })?;
            match &file.path {
                Some(path) => write!(f, "{} to {}", path.display(), target.display())?,
                None => write!(f, "{}", target.display())?,
            }
        }
        match self.files.len().saturating_sub(SHOWN) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

/// Does the location lead somewhere else than into the model's folder?
fn leaves_folder(location: &str) -> bool {
    let mut depth = 0_usize;
    for component in Path::new(location).components() {
        match component {
            Component::Normal(_) => depth += 1,
            Component::CurDir => {}
            Component::ParentDir if depth > 0 => depth -= 1,
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => return true,
        }
    }
    false
}
