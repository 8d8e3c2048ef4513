//! What is known about the correctness of an engine's plugin.
//!
//! Input: the environment of the engine, and certificates: one that the configuration names, one
//! that `fuseline qualify` has left in the disk cache, or one that comes with this crate. Output:
//! the [`Defects`] of the plugin. If there is no certificate, a quick qualification may run in a
//! process of its own; the defects that it finds count from then on.
//!
//! Invariants:
//! - TRUST-1: before the first compile, the defects that a certificate states are known.
//! - TRUST-2: a qualification in the background delays no op and no compile of this process,
//!   except by the processor time that it takes at the lowest priority.

use std::ffi::OsString;
use std::process::{Command, Stdio};
use std::sync::{Arc, OnceLock};

use fuseline_pjrt::PluginScope;

use crate::certificate::{Certificate, CertificateKey};
use crate::device::Defects;
use crate::engine::EngineShared;
use crate::error::{Error, Result};
use crate::event::{Event, QualificationStatus};
use crate::settings::{DiskCacheSetting, QualificationPolicy};
use crate::store::{Environment, Store};

/// The certificates that come with this crate: XLA's CPU backend as packaged by `xla-cpu-pjrt`,
/// `fastatomstruct-xla-cpu` and `lammps-jax-pjrt-cpu`, at the full level.
const COMMITTED: &[&str] = &[
    include_str!("../../certificates/xla-cpu-0.81.json"),
    include_str!("../../certificates/xla-cpu-0.106.json"),
    include_str!("../../certificates/xla-cpu-0.115.json"),
];

/// The program that qualifies plugins, if the configuration names none.
const QUALIFIER: &str = "fuseline";

/// The first bytes of the name of a certificate's note.
const NOTE: &[u8] = b"certificate";

/// What is known about a plugin.
#[derive(Debug, Default)]
pub(crate) struct Qualification {
    at_start: OnceLock<Arc<Defects>>,
    /// What a qualification in the background has found.
    in_background: OnceLock<Arc<Defects>>,
}

/// The certificate that was found.
enum CertificateMatch {
    /// One for exactly this environment.
    Exact(Certificate),
    /// One for the same plugin file, with another processor, other options or another version of
    /// the lowering.
    SamePlugin(Certificate),
}

impl EngineShared {
    /// What the plugin is known to compute wrongly. The first call may read the plugin's file.
    pub(crate) fn defects(&self) -> &Arc<Defects> {
        let known = &self.qualification;
        if let Some(found) = known.in_background.get() {
            return found;
        }
        known.at_start.get_or_init(|| match self.find_certificate() {
            Ok(Some(CertificateMatch::Exact(certificate) | CertificateMatch::SamePlugin(certificate))) => {
                Arc::new(Defects::of(&certificate))
            }
            _ => Arc::default(),
        })
    }

    /// Checks that there is a certificate, if the configuration requires one.
    ///
    /// # Errors
    /// When there is none.
    pub(crate) fn check_qualification(&self) -> Result<()> {
        if self.config.qualification != QualificationPolicy::Require || self.device.pjrt().is_none() {
            return Ok(());
        }
        match self.find_certificate().map_err(Error::setup)? {
            Some(CertificateMatch::Exact(_)) => Ok(()),
            _ => Err(Error::setup(format!(
                "the configuration requires a certificate for the plugin {}, and there is none for this \
                 environment: run `{}`",
                self.plugin_path(),
                self.qualify_command(),
            ))),
        }
    }

    /// Reports a plugin without a certificate, and starts to qualify it if that is configured. Runs
    /// on a thread that may wait.
    pub(crate) fn qualify_unknown_plugin(self: &Arc<Self>) {
        let Some(store) = self.settled_store().filter(|store| store.has_disk()) else { return };
        let Some(device) = self.device.pjrt() else { return };
        if !matches!(self.find_certificate(), Ok(None)) {
            return;
        }
        let may_start = self.config.qualification == QualificationPolicy::Background
            && device.is_near_host()
            && !store.is_read_only();
        let status = match may_start.then(|| self.start_qualifier()) {
            Some(Ok(child)) => {
                self.await_qualifier(child);
                QualificationStatus::Started
            }
            Some(Err(_)) | None => QualificationStatus::Missing { command: self.qualify_command() },
        };
        let plugin = self.plugin_path();
        self.telemetry.events().emit(|| Event::Unqualified { plugin, status });
    }

    fn start_qualifier(&self) -> std::io::Result<std::process::Child> {
        let default = || vec![OsString::from(QUALIFIER)];
        let words = self.config.qualifier.clone().unwrap_or_else(default);
        let (program, arguments) = words.split_first().ok_or(std::io::ErrorKind::NotFound)?;
        let plugin = self.device.pjrt().map(|device| device.plugin().path());
        let mut command = Command::new(program);
        command.args(arguments).args(["qualify", "--quick", "--background", "--plugin"]).args(plugin);
        for (name, value) in self.config.client_options.values() {
            let (ty, text) = value.to_typed_text();
            command.args(["--client-option", &format!("{name}:{ty}={text}")]);
        }
        if let DiskCacheSetting::At(place) = &self.config.disk_cache {
            command.envs(place.variables());
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()
    }

    /// Takes the certificate when the qualification has ended.
    fn await_qualifier(self: &Arc<Self>, mut child: std::process::Child) {
        let engine = Arc::downgrade(self);
        let wait = move || {
            let has_succeeded = child.wait().is_ok();
            // This may destroy executables, or the engine.
            let _inside = PluginScope::enter();
            if let Some(engine) = engine.upgrade().filter(|_| has_succeeded) {
                engine.take_certificate();
            }
        };
        // Without a thread, the next process finds the certificate.
        drop(std::thread::Builder::new().name("fuseline-qualify".into()).spawn(wait));
    }

    /// Takes a certificate that another process has made meanwhile.
    fn take_certificate(&self) {
        let Some(store) = self.settled_store() else { return };
        let Some(key) = store.environment().map(key_of) else { return };
        let noted = store.load_new_note(&note_name(&key));
        let Some(certificate) = noted.and_then(|note| certificate_of(&note, &key)) else { return };
        let defects = Arc::new(Defects::of(&certificate));
        let (count, plugin) = (defects.len(), self.plugin_path());
        if self.qualification.in_background.set(defects).is_err() {
            return;
        }
        if count > 0 {
            // Executables with these ops must not run again.
            self.cache.clear();
        }
        let status = QualificationStatus::Finished { defects: count };
        self.telemetry.events().emit(|| Event::Unqualified { plugin, status });
    }

    fn plugin_path(&self) -> String {
        self.device.pjrt().map_or_else(String::new, |device| device.plugin().path().display().to_string())
    }

    /// The command with which a user qualifies the plugin.
    fn qualify_command(&self) -> String {
        format!("{QUALIFIER} qualify --plugin {}", self.plugin_path())
    }

    /// Finds a certificate for the plugin.
    ///
    /// # Errors
    /// When the configured one is for another plugin file, or the environment is unknown.
    fn find_certificate(&self) -> std::result::Result<Option<CertificateMatch>, String> {
        let Some(device) = self.device.pjrt() else { return Ok(None) };
        let configured = self.config.certificate.as_deref();
        let store = self.settled_store();
        let here;
        let environment = match store.and_then(|store| store.environment()) {
            Some(environment) => environment,
            // Reading the plugin's file takes too long if there is nothing to compare with.
            None if configured.is_none() => return Ok(None),
            None => {
                here = Store::environment_without_disk(device.compiler(), &self.config.client_options)?;
                &here
            }
        };
        let key = key_of(environment);
        if let Some(certificate) = configured {
            if certificate.key().plugin != key.plugin {
                return Err(format!(
                    "the configured certificate is for another file than the plugin {}",
                    self.plugin_path()
                ));
            }
            return Ok(Some(match_of(certificate.clone(), &key)));
        }
        let noted = store.and_then(|store| store.load_note(&note_name(&key)));
        if let Some(certificate) = noted.and_then(|note| certificate_of(&note, &key)) {
            return Ok(Some(CertificateMatch::Exact(certificate)));
        }
        let of_plugin = COMMITTED.iter().filter(|text| text.contains(&key.plugin));
        let mut of_plugin = of_plugin.filter_map(|text| Certificate::parse(text).ok());
        Ok(of_plugin.next().map(|certificate| match_of(certificate, &key)))
    }

    /// Keeps a certificate in the disk cache, for later processes. They leave out the workarounds
    /// that it calls unneeded.
    ///
    /// # Errors
    /// When there is no disk cache, or the certificate is for another environment.
    pub fn keep_certificate(&self, certificate: &Certificate) -> Result<()> {
        let store = self.needed_store()?;
        let key = store.environment().map(key_of);
        if key.as_ref() != Some(certificate.key()) {
            let differing = key.map(|key| key.differences(certificate.key()).join(", "));
            let differing = differing.unwrap_or_else(|| "everything".to_owned());
            return Err(Error::setup(format!(
                "the certificate is for another environment; what differs: {differing}"
            )));
        }
        store.keep_note(&note_name(certificate.key()), certificate.to_json().as_bytes());
        let unneeded = certificate.unneeded_workarounds();
        if let Some((name, note)) = self.device.pjrt().and_then(|device| device.note_of_workarounds(unneeded))
        {
            store.keep_note(&name, &note);
        }
        Ok(())
    }
}

fn key_of(environment: &Environment) -> CertificateKey {
    CertificateKey::of_parts(environment.parts().iter().map(|(name, value)| (name.as_str(), value.as_str())))
}

/// The certificate in a note, if it is for this key.
fn certificate_of(note: &[u8], key: &CertificateKey) -> Option<Certificate> {
    let certificate = Certificate::parse(std::str::from_utf8(note).ok()?).ok()?;
    (certificate.key() == key).then_some(certificate)
}

fn match_of(certificate: Certificate, key: &CertificateKey) -> CertificateMatch {
    if certificate.key() == key {
        CertificateMatch::Exact(certificate)
    } else {
        CertificateMatch::SamePlugin(certificate)
    }
}

/// The name of the note with the certificate for a key.
fn note_name(key: &CertificateKey) -> Vec<u8> {
    let mut name = NOTE.to_vec();
    for (part, value) in key.parts() {
        name.extend_from_slice(format!("\n{part}={value}").as_bytes());
    }
    name
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_certificates_of_this_crate_can_be_read() {
        let parsed: Vec<Certificate> =
            COMMITTED.iter().map(|text| Certificate::parse(text).expect("a certificate")).collect();
        let plugins: BTreeSet<&str> = parsed.iter().map(|one| one.key().plugin.as_str()).collect();
        assert_eq!(plugins.len(), COMMITTED.len(), "each is for another file");
        for (certificate, text) in parsed.iter().zip(COMMITTED) {
            assert_eq!(certificate.to_json(), **text);
        }
    }
}
