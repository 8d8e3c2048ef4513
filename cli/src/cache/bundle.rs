//! `fuseline cache export` and `import`.

use fuseline::aot::{self, BundleKey, EntryFile, EntryKind, Exported, Imported};
use serde_json::json;

use super::args::{ExportArgs, ImportArgs};
use super::{Opened, is_meant, key_file};
use crate::Status;
use crate::failure::Failure;
use crate::text::{count, note, say};

pub(super) fn export(args: &ExportArgs, out: &mut String) -> Result<Status, Failure> {
    let key_file = key_file(args.key_file.as_ref())?;
    let folder = args.common.dir.look_into()?;
    let opened = Opened::of(&folder)?;
    let mut files: Vec<EntryFile> = Vec::new();
    let mut unmet: Vec<&String> = args.keys.iter().collect();
    for (file, entry) in opened.entries.iter().filter(|(_, entry)| entry.kind() == EntryKind::Executable) {
        let mut is_wanted = args.keys.is_empty();
        for key in args.keys.iter().filter(|key| is_meant(file, entry, key)) {
            is_wanted = true;
            unmet.retain(|other| *other != key);
        }
        if is_wanted {
            files.push(*file);
        }
    }
    if let Some(key) = unmet.first() {
        return Err(Failure::Input(format!("no executable has a key or name that begins with {key}")));
    }
    let key = match std::fs::symlink_metadata(&key_file) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let key = BundleKey::make(&key_file).map_err(Failure::run)?;
            let path = key_file.display();
            note(format_args!(
                "fuseline: created the key {path}; only those who import the bundle should get it"
            ));
            key
        }
        _ => BundleKey::read(&key_file).map_err(Failure::run)?,
    };
    let exported = aot::export(&folder, &files, &key, &args.file).map_err(Failure::run)?;
    let Exported { executables, environments, bytes } = exported;
    if args.common.json {
        let document = json!({"executables": executables, "environments": environments, "bytes": bytes.0});
        say!(out, "{document:#}");
    } else {
        let (what, where_to) = (count(executables, "executable"), args.file.display());
        say!(out, "wrote {what} of {} to {where_to}, {bytes}", count(environments, "environment"));
    }
    Ok(Status::Good)
}

pub(super) fn import(args: &ImportArgs, out: &mut String) -> Result<Status, Failure> {
    let key = BundleKey::read(key_file(args.key_file.as_ref())?).map_err(Failure::run)?;
    let folder = args.common.dir.open()?;
    let Imported { added, present, environments } =
        aot::import(&folder, &key, &args.file).map_err(Failure::run)?;
    if args.common.json {
        say!(out, "{:#}", json!({"added": added, "present": present, "environments": environments}));
    } else {
        say!(out, "added {}, {present} already stored", count(added, "executable"));
    }
    Ok(Status::Good)
}
