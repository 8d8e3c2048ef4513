//! Access by other users: folders that are not the user's alone are refused (DISK-3), with advice.
#![allow(clippy::unwrap_used, clippy::disallowed_types, reason = "a test, on real threads")]

mod support;

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use fuseline_cache::Secret;
use fuseline_cache::disk::{
    DiskCache, DiskConfig, DiskDisabled, JoinOutcome, Output, Reason, SecretSource, Stage, open_given,
    resolve_new, write_given,
};
use rustix::fs::{FileType, Mode};

use support::{Root, child, is_root, is_there, record, role, skip};

/// `nobody` on most systems; any other user will do.
const SOMEBODY_ELSE: u32 = 65534;

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

/// A folder in use that has become unacceptable: there is no tier, for this reason at this path.
fn refuses(root: &Root, path: &Path, is_so: impl Fn(&Reason) -> bool) {
    let off: DiskDisabled = root.open_with(root.config()).expect_err("used all the same");
    assert!(is_so(&off.why), "{off:?}");
    assert_eq!(off.path, path, "{off}");
    assert!(off.to_string().contains(&*path.to_string_lossy()), "{off}");
    // A refused folder is not written to either.
    root.assert_quiet();
}

fn key_folder(root: &Root) -> std::path::PathBuf {
    root.dir.path().join("state")
}

fn folders(root: &Root) -> Vec<std::path::PathBuf> {
    let within = ["entries", "temp", "flights", "marks", "quarantine"].map(|name| root.folder(name));
    let mut folders = vec![root.path(), root.path().join("v1"), key_folder(root)];
    folders.extend(within);
    folders
}

fn used() -> Root {
    let root = Root::new();
    let cache = root.open();
    assert!(cache.store(&record("a")));
    root
}

#[test]
fn what_it_makes_is_for_its_user_alone() {
    // With any umask, including one that removes nothing and one that removes too much. A process
    // has only one umask.
    for mask in [0o000, 0o022, 0o077, 0o277] {
        if mask == 0o277 && !is_root() {
            continue;
        }
        let root = Root::new();
        let output = child(&format!("mask|{mask}|{}", root.dir.path().display())).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        for folder in folders(&root) {
            assert_eq!(mode(&folder), 0o700, "{mask:o} {}", folder.display());
        }
        for file in [root.key(), root.entry(&record("a").name())] {
            assert_eq!(mode(&file) & 0o177, 0, "{mask:o} {}", file.display());
        }
    }
}

#[test]
fn folders_that_others_may_use_are_refused() {
    for place in 0..folders(&used()).len() {
        for bits in [0o770, 0o707, 0o710, 0o701, 0o740, 0o704, 0o720, 0o702, 0o777, 0o1777] {
            let root = used();
            let folder = folders(&root).remove(place);
            set_mode(&folder, bits);
            // Seeing that there is a key does not reveal it, but whoever can change its folder can
            // replace it.
            if folder == key_folder(&root) {
                if bits & 0o022 == 0 {
                    assert!(root.open_with(root.config()).is_ok(), "{bits:o}");
                    continue;
                }
                refuses(&root, &folder, |why| matches!(why, Reason::OthersChange(mode) if *mode == bits));
            } else {
                refuses(&root, &folder, |why| matches!(why, Reason::Mode(mode) if *mode == bits));
            }
            // The advice works.
            set_mode(&folder, bits & 0o700);
            let cache = root.open();
            assert_eq!(cache.load(&record("a").request()).found(), Some(record("a")));
        }
    }
}

#[test]
fn folders_of_another_user_are_refused() {
    if !is_root() {
        return;
    }
    for place in 0..folders(&used()).len() {
        let root = used();
        let folder = folders(&root).remove(place);
        chown(&folder, Some(SOMEBODY_ELSE), None).unwrap();
        refuses(&root, &folder, |why| matches!(why, Reason::Owner { owner: SOMEBODY_ELSE, .. }));
    }
}

#[test]
fn links_in_place_of_folders_are_refused() {
    for place in 0..folders(&used()).len() {
        let root = used();
        let folder = folders(&root).remove(place);
        let aside = root.dir.path().join("aside");
        fs::rename(&folder, &aside).unwrap();
        symlink(&aside, &folder).unwrap();
        refuses(&root, &folder, |why| matches!(why, Reason::NoFolder));
        // Nor a dangling link.
        fs::remove_dir_all(&aside).unwrap();
        refuses(&root, &folder, |why| matches!(why, Reason::NoFolder));
        assert!(!is_there(&aside), "made by way of a link");
    }
}

#[test]
fn files_and_pipes_in_place_of_folders_are_refused() {
    for place in 0..folders(&used()).len() {
        let root = used();
        let folder = folders(&root).remove(place);
        fs::remove_dir_all(&folder).unwrap();
        fs::write(&folder, "x").unwrap();
        refuses(&root, &folder, |why| matches!(why, Reason::NoFolder));
        fs::remove_file(&folder).unwrap();
        pipe(&folder);
        refuses(&root, &folder, |why| matches!(why, Reason::NoFolder));
    }
}

#[test]
fn a_file_above_the_folder_is_told() {
    let root = Root::new();
    fs::write(root.path(), "x").unwrap();
    let config = DiskConfig { root: root.path().join("below"), ..root.given() };
    let off = root.open_with(config).expect_err("a folder in a file");
    assert!(matches!(off.why, Reason::Io { .. }), "{off:?}");
}

/// Whoever may rename entries of a parent folder can replace this folder.
#[test]
fn folders_that_everybody_may_exchange_are_refused() {
    for above in ["cache", "state"] {
        let root = Root::new();
        let open = root.dir.path().join("open");
        fs::create_dir_all(open.join("below")).unwrap();
        set_mode(&open, 0o777);
        let mut config = root.config();
        let place = open.join("below").join(above);
        match above {
            "cache" => config.root = place,
            _ => config.secret = SecretSource::File(place.join("cache.key")),
        }
        let off = root.open_with(config.clone()).expect_err("used all the same");
        assert!(matches!(off.why, Reason::OthersWrite), "{off:?}");
        assert_eq!(off.path, open.canonicalize().unwrap());
        // Also through a link to it.
        let link = root.dir.path().join("link");
        symlink(open.join("below"), &link).unwrap();
        let place = link.join(above);
        let mut linked = config.clone();
        match above {
            "cache" => linked.root = place,
            _ => linked.secret = SecretSource::File(place.join("cache.key")),
        }
        let off = root.open_with(linked.clone()).expect_err("used all the same");
        assert!(matches!(off.why, Reason::OthersWrite), "{off:?}");
        // If users may only remove their own files, as in the folder of temporary files, it is
        // accepted.
        set_mode(&open, 0o1777);
        assert!(root.open_with(config).is_ok());
        assert!(root.open_with(linked).is_ok());
    }
}

fn socket(path: &Path) {
    rustix::fs::mknodat(rustix::fs::CWD, path, FileType::Socket, Mode::RUSR | Mode::WUSR, 0).unwrap();
}

/// Each parent folder belongs to the user or root, and nothing is created through another one.
#[test]
fn folders_below_another_users_are_refused() {
    if !is_root() {
        return;
    }
    for above in ["cache", "state"] {
        let root = Root::new();
        let theirs = root.dir.path().canonicalize().unwrap().join("theirs");
        fs::create_dir_all(theirs.join("below")).unwrap();
        chown(&theirs, Some(SOMEBODY_ELSE), None).unwrap();
        let link = root.dir.path().join("link");
        symlink(theirs.join("below"), &link).unwrap();
        for way in [theirs.join("below"), link] {
            let mut config = root.config();
            match above {
                "cache" => config.root = way.join("new").join(above),
                _ => config.secret = SecretSource::File(way.join("new").join(above).join("cache.key")),
            }
            let off = root.open_with(config).expect_err("used all the same");
            assert!(matches!(off.why, Reason::Owner { owner: SOMEBODY_ELSE, .. }), "{off:?}");
            assert_eq!(off.path, theirs);
            assert_eq!(support::list(&theirs.join("below")), Vec::<String>::new(), "made all the same");
        }
    }
}

/// Where everybody may make links, links of other users are not followed, whatever their target.
#[test]
fn links_that_another_user_made_are_not_followed() {
    if !is_root() {
        return;
    }
    let root = Root::new();
    let open = root.dir.path().join("open");
    let good = root.dir.path().join("good");
    fs::create_dir(&open).unwrap();
    fs::create_dir(&good).unwrap();
    set_mode(&open, 0o1777);
    let key = good.join("key");
    fs::write(&key, [7; 32]).unwrap();
    set_mode(&key, 0o600);
    let (folder, file) = (open.join("folder"), open.join("file"));
    symlink(&good, &folder).unwrap();
    symlink(&key, &file).unwrap();
    let config = DiskConfig { root: folder.join("cache"), ..root.config() };
    let keyed = DiskConfig { secret: SecretSource::File(folder.join("state").join("k")), ..root.config() };
    // The user's own links are as good as their targets.
    assert!(root.open_with(config.clone()).is_ok() && root.open_with(keyed.clone()).is_ok());
    assert_eq!(fuseline_cache::disk::read_key(&file).unwrap(), [7; 32]);
    assert!(open_given(&file).is_ok() && write_given(&file, &[7; 32]).is_ok());
    fs::remove_dir_all(good.join("cache")).unwrap();
    fs::remove_dir_all(good.join("state")).unwrap();
    for link in [&folder, &file] {
        std::os::unix::fs::lchown(link, Some(SOMEBODY_ELSE), None).unwrap();
    }
    for config in [config, keyed] {
        let off = root.open_with(config).expect_err("used all the same");
        assert!(matches!(off.why, Reason::Link(SOMEBODY_ELSE)), "{off:?}");
    }
    assert_eq!(support::list(&good), ["key"], "made by way of a link");
    assert!(matches!(fuseline_cache::disk::read_key(&file), Err(DiskDisabled { why: Reason::Link(_), .. })));
    let refused =
        |error: std::io::Error| assert!(error.to_string().contains("it is not followed"), "{error}");
    refused(open_given(&file).expect_err("read"));
    refused(write_given(&file, b"x").expect_err("written"));
    refused(Output::append(&file).expect_err("written"));
    refused(resolve_new(&folder.join("new")).expect_err("made"));
    assert_eq!(fs::read(&key).unwrap(), [7; 32]);
    // In the user's own folder a link was made by the user's own programs, such as a mounted
    // secret.
    set_mode(&open, 0o755);
    assert!(open_given(&file).is_ok());
}

/// Nor is a link followed that replaces a file between the check and the write.
#[test]
fn a_link_that_appears_meanwhile_is_not_written_through() {
    if !is_root() {
        return;
    }
    let root = Root::new();
    let open = root.dir.path().join("open");
    fs::create_dir(&open).unwrap();
    // Without the sticky bit, with which Linux itself does not follow such links.
    set_mode(&open, 0o777);
    let victim = root.dir.path().join("victim");
    fs::write(&victim, "precious").unwrap();
    let target = open.join("target");
    let is_over = AtomicBool::new(false);
    let writes = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                let (link, file) = (open.join("link"), open.join("file"));
                symlink(&victim, &link).unwrap();
                std::os::unix::fs::lchown(&link, Some(SOMEBODY_ELSE), None).unwrap();
                fs::rename(&link, &target).unwrap();
                fs::write(&file, "").unwrap();
                fs::rename(&file, &target).unwrap();
            }
        });
        let writes = (0..3_000).filter(|_| write_given(&target, b"x").is_ok()).count();
        is_over.store(true, Ordering::Relaxed);
        writes
    });
    assert_eq!(fs::read_to_string(&victim).unwrap(), "precious", "{writes} writes");
}

/// A group with other members must not have write access to parent folders; the user's own group
/// may.
#[test]
fn folders_that_a_group_may_exchange_are_refused() {
    if !is_root() {
        return;
    }
    let root = Root::new();
    let shared = root.dir.path().canonicalize().unwrap().join("shared");
    fs::create_dir(&shared).unwrap();
    set_mode(&shared, 0o770);
    let config = DiskConfig { root: shared.join("cache"), ..root.config() };
    assert!(root.open_with(config.clone()).is_ok(), "root's own group");
    chown(&shared, None, Some(SOMEBODY_ELSE)).unwrap();
    let off = root.open_with(config.clone()).expect_err("used all the same");
    assert!(matches!(off.why, Reason::OthersWrite) && off.path == shared, "{off:?}");
    set_mode(&shared, 0o1770);
    assert!(root.open_with(config).is_ok());
}

/// Files that a user names must be regular, and other kinds do not block.
#[test]
fn files_that_are_named_are_regular() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    pipe(&at("pipe"));
    socket(&at("socket"));
    for path in [at("pipe"), at("socket"), folder.path().to_owned(), "/dev/zero".into()] {
        assert!(open_given(&path).is_err(), "{}", path.display());
        assert!(Output::append(&path).is_err(), "{}", path.display());
    }
    write_given(&at("file"), b"12345").unwrap();
    assert!(open_given(&at("file")).is_ok_and(|(_, len)| len == 5));
    // A terminal or a pipe may be written to.
    assert!(write_given(Path::new("/dev/null"), b"12345").is_ok());
}

fn pipe(path: &Path) {
    rustix::fs::mknodat(rustix::fs::CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
}

/// A path with an entry's name that is no entry: refused, reported, removed, and stored again.
#[test]
fn what_is_no_file_of_its_own_is_no_entry() {
    type Put = fn(&Root, &Path, &Path);
    let rows: [(&str, &str, Put); 10] = [
        ("a socket", "regular", |_, path, _| socket(path)),
        ("a link", "it is a link", |_, path, other| symlink(other, path).unwrap()),
        ("a link to nothing", "it is a link", |root, path, _| {
            symlink(root.dir.path().join("nothing"), path).unwrap();
        }),
        ("a second name", "second hard link", |_, path, other| fs::hard_link(other, path).unwrap()),
        ("a pipe", "regular", |_, path, _| pipe(path)),
        ("a folder", "regular", |_, path, _| fs::create_dir(path).unwrap()),
        ("a full folder", "regular", |_, path, _| fs::create_dir_all(path.join("a").join("b")).unwrap()),
        ("for the group to write", "other users can write", |_, path, other| {
            fs::copy(other, path).unwrap();
            set_mode(path, 0o620);
        }),
        ("for everybody to write", "other users can write", |_, path, other| {
            fs::copy(other, path).unwrap();
            set_mode(path, 0o602);
        }),
        ("another user's", "another user", |_, path, other| {
            fs::copy(other, path).unwrap();
            chown(path, Some(SOMEBODY_ELSE), None).unwrap();
        }),
    ];
    for (what, why, put) in rows {
        if what == "another user's" && !is_root() {
            continue;
        }
        let (root, record) = (Root::new(), record("a"));
        let cache = root.open();
        assert!(cache.store(&record));
        let (path, other) = (root.entry(&record.name()), root.dir.path().join("other"));
        for before_store in [false, true] {
            // Even if the bytes are those of a valid entry.
            fs::rename(&path, &other).unwrap();
            put(&root, &path, &other);
            if !before_store {
                assert_eq!(cache.load(&record.request()).found(), None, "{what}");
                let told = root.log.take();
                assert!(told.len() == 1 && told[0].contains(why), "{what}: {told:?}");
                assert!(!is_there(&path), "{what} stayed");
            }
            assert!(cache.store(&record), "{what}: not healed, {:?}", root.log.take());
            assert_eq!(cache.load(&record.request()).found().as_ref(), Some(&record), "{what}");
            // The target of the link, or the file with the second name, was not written to.
            if is_there(&other) {
                fs::remove_file(&other).unwrap();
            }
            root.assert_quiet();
        }
        assert!(cache.sweep().is_some_and(|swept| swept.entries == 1), "{what}");
        root.assert_quiet();
    }
}

#[test]
fn a_link_to_a_good_entry_does_not_cost_the_entry() {
    let root = Root::new();
    let cache = root.open();
    let (a, b) = (record("a"), record("b"));
    assert!(cache.store(&a));
    symlink(root.entry(&a.name()), root.entry(&b.name())).unwrap();
    assert_eq!(cache.load(&b.request()).found(), None);
    assert!(cache.store(&b));
    assert_eq!(cache.load(&a.request()).found(), Some(a));
}

/// Foreign files in any of the folders interfere neither with a sweep nor with judging crash marks.
#[test]
fn what_does_not_belong_there_is_in_nobodys_way() {
    let root = used();
    for folder in ["entries", "temp", "flights", "marks", "quarantine"] {
        let at = root.folder(folder);
        fs::create_dir_all(at.join("folder").join("within")).unwrap();
        fs::create_dir(at.join("empty")).unwrap();
        fs::write(at.join("file"), "x").unwrap();
        fs::write(at.join("0"), "").unwrap();
        symlink("nowhere", at.join("link")).unwrap();
        pipe(&at.join("pipe"));
        socket(&at.join("socket"));
        // The name of an entry, in each folder.
        fs::create_dir(at.join("0".repeat(64))).unwrap();
    }
    let crashed = crash_of(&root, Stage::Make, "b");
    let cache = root.open();
    assert!(cache.quarantine(&crashed).is_some(), "{:?}", root.log.take());
    assert_eq!(cache.load(&record("a").request()).found(), Some(record("a")));
    assert!(cache.store(&record("c")));
    assert!(matches!(cache.join(&record("d").request(), std::time::Duration::ZERO), JoinOutcome::Leader(_)));
    // All entries are removed, whatever else is there.
    let swept = cache.sweep_to(0).expect("a sweep");
    assert_eq!(cache.load(&record("a").request()).found(), None);
    assert_eq!(swept.entries, 0, "{swept:?} {:?}", root.list("entries"));
    // Foreign files are removed without a report: otherwise every process would report them.
    let told = root.log.take();
    assert!(told.iter().all(|told| told.starts_with("quarantined")), "{told:?}");
    assert!(cache.litter().is_ok_and(|litter| litter.strangers == 0));
    assert_eq!(root.list("entries"), Vec::<String>::new());
    assert!(!is_there(&root.folder("temp").join("file")) && !is_there(&root.folder("temp").join("pipe")));
    assert!(cache.store(&record("a")));
    assert_eq!(cache.load(&record("a").request()).found(), Some(record("a")));
}

/// The marks that a crashed process would have left.
fn crash_of(root: &Root, stage: Stage, request: &str) -> fuseline_cache::Name {
    let name = record(request).name();
    let mut bytes = vec![0; 112];
    bytes[0] = b'!';
    bytes[40] = match stage {
        Stage::Make => b'm',
        Stage::Load => b'l',
        Stage::Run => b'r',
    };
    bytes[48..80].copy_from_slice(name.as_bytes());
    bytes[80..112].copy_from_slice(name.as_bytes());
    fs::write(root.folder("marks").join("f".repeat(32)), bytes).unwrap();
    name
}

/// A key made by another program: of a fleet, or of a bundle.
#[test]
fn a_key_that_was_given_is_checked() {
    type Put = fn(&Path);
    let rows: [(&str, Option<&str>, Put); 12] = [
        ("as it should be", None, |_| {}),
        ("to read only", None, |path| set_mode(path, 0o400)),
        ("a link to it", None, |path| {
            fs::rename(path, path.with_extension("aside")).unwrap();
            symlink(path.with_extension("aside"), path).unwrap();
        }),
        ("absent", Some("could not read"), |path| fs::remove_file(path).unwrap()),
        ("short", Some("does not have 32 bytes"), |path| fs::write(path, [1; 31]).unwrap()),
        ("long", Some("does not have 32 bytes"), |path| fs::write(path, [1; 33]).unwrap()),
        ("for everybody", Some("other users have access"), |path| set_mode(path, 0o604)),
        ("for the group to write", Some("other users have access"), |path| set_mode(path, 0o620)),
        ("folder", Some("not a regular file"), |path| {
            fs::remove_file(path).unwrap();
            fs::create_dir(path).unwrap();
        }),
        ("pipe", Some("not a regular file"), |path| {
            fs::remove_file(path).unwrap();
            pipe(path);
        }),
        ("endless", Some("not a regular file"), |path| {
            fs::remove_file(path).unwrap();
            symlink("/dev/zero", path).unwrap();
        }),
        ("another user's", Some("belongs to user"), |path| {
            chown(path, Some(SOMEBODY_ELSE), None).unwrap();
        }),
    ];
    for (what, wrong, put) in rows {
        if what == "another user's" && !is_root() {
            continue;
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        fs::write(&path, [7; 32]).unwrap();
        set_mode(&path, 0o600);
        put(&path);
        match (fuseline_cache::disk::read_key(&path), wrong) {
            (Ok(key), None) => assert_eq!(key, [7; 32], "{what}"),
            (Err(off), Some(words)) => {
                assert!(off.to_string().contains(words), "{what}: {off}");
                assert_eq!(off.path, path, "{what}");
            }
            (result, _) => panic!("{what}: {:?}", result.map(|_| "a key")),
        }
    }
}

#[test]
fn the_file_of_the_secret_is_checked() {
    type Put = fn(&Root);
    let put: [(&str, &str, Put); 8] = [
        ("short", "does not have 32 bytes", |root| fs::write(root.key(), [1; 31]).unwrap()),
        ("empty", "does not have 32 bytes", |root| fs::write(root.key(), "").unwrap()),
        ("long", "does not have 32 bytes", |root| fs::write(root.key(), [1; 33]).unwrap()),
        ("for the group", "other users have access", |root| set_mode(&root.key(), 0o640)),
        ("for everybody", "other users have access", |root| set_mode(&root.key(), 0o604)),
        ("link", "it is a link", |root| {
            let other = root.dir.path().join("other.key");
            fs::rename(root.key(), &other).unwrap();
            symlink(other, root.key()).unwrap();
        }),
        ("folder", "not a regular file", |root| {
            fs::remove_file(root.key()).unwrap();
            fs::create_dir(root.key()).unwrap();
            set_mode(&root.key(), 0o700);
        }),
        ("pipe", "not a regular file", |root| {
            fs::remove_file(root.key()).unwrap();
            pipe(&root.key());
        }),
    ];
    for (what, words, put) in put {
        let root = used();
        put(&root);
        let off = root.open_with(root.config()).expect_err(what);
        assert!(off.to_string().contains(words), "{what}: {off}");
        assert_eq!(off.path, root.key(), "{what}");
        assert!(is_there(&root.key()), "{what}: removed");
    }
    if is_root() {
        let root = used();
        chown(root.key(), Some(SOMEBODY_ELSE), None).unwrap();
        refuses(&root, &root.key(), |why| matches!(why, Reason::Owner { owner: SOMEBODY_ELSE, .. }));
    }
    let root = Root::new();
    let config = DiskConfig { secret: SecretSource::File("/".into()), ..root.config() };
    assert!(matches!(root.open_with(config), Err(DiskDisabled { why: Reason::KeyFile(_), .. })));
}

/// Without the secret, entries are useless and are made again.
#[test]
fn another_secret_is_a_fresh_start() {
    for remove in [true, false] {
        let (root, record) = (used(), record("a"));
        match remove {
            true => fs::remove_file(root.key()).unwrap(),
            false => fs::write(root.key(), [7; 32]).unwrap(),
        }
        let cache = root.open();
        assert_eq!(cache.load(&record.request()).found(), None);
        assert!(root.log.take()[0].contains("another cache key"));
        assert!(cache.store(&record));
        assert_eq!(root.open().load(&record.request()).found(), Some(record));
        root.assert_quiet();
    }
}

/// Processes that make the secret at once all use the same one, and files of processes that ended
/// meanwhile are removed.
#[test]
fn the_secret_is_made_once() {
    for _ in 0..20 {
        let root = Root::new();
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let root = &root;
                scope.spawn(move || assert!(root.open().store(&record(&format!("{thread}")))));
            }
        });
        let cache = root.open();
        for thread in 0..8 {
            assert!(cache.load(&record(&format!("{thread}")).request()).found().is_some());
        }
        root.assert_quiet();
        assert_eq!(support::list(root.key().parent().unwrap()), ["cache.key"]);
    }
}

#[test]
fn secrets_that_were_being_written_do_not_stay() {
    let root = used();
    let state = root.key().parent().unwrap().to_owned();
    let temp = |digit: &str| state.join(format!("cache.key.{}", digit.repeat(32)));
    // Ended before it was linked, without any secret yet; files of other programs stay.
    fs::remove_file(root.key()).unwrap();
    fs::write(temp("a"), [1; 32]).unwrap();
    fs::write(state.join("cache.key.old"), [1; 32]).unwrap();
    drop(root.open());
    assert_eq!(support::list(&state), ["cache.key", "cache.key.old"]);
    // Ended after it was linked.
    fs::hard_link(root.key(), temp("b")).unwrap();
    drop(root.open());
    assert_eq!(support::list(&state), ["cache.key", "cache.key.old"]);
    root.assert_quiet();
}

#[test]
fn who_may_only_read_makes_and_changes_nothing() {
    let root = used();
    let record = record("a");
    let read_only = || DiskConfig { read_only: true, ..root.config() };
    let before = tree(root.dir.path());
    let cache = root.open_with(read_only()).unwrap();
    assert_eq!(cache.load(&record.request()).found(), Some(record.clone()));
    assert!(!cache.store(&support::record("b")));
    assert!(
        cache.mark(Stage::Make, &record.name(), &record.name()).is_none() && cache.crash_file().is_none()
    );
    assert!(cache.sweep().is_none());
    assert!(!cache.remove(&record.name()), "what the plugin did not load is not its to remove");
    // A process that stores nothing never waits.
    assert!(matches!(
        cache.join(&support::record("b").request(), std::time::Duration::ZERO),
        JoinOutcome::NoLock
    ));
    drop(cache);
    root.assert_quiet();
    assert_eq!(tree(root.dir.path()), before);
    // A read-only tier creates nothing.
    for what in ["state", "cache/v1/temp", "cache"] {
        fs::remove_dir_all(root.dir.path().join(what)).unwrap();
        let before = tree(root.dir.path());
        let off = root.open_with(read_only()).expect_err(what);
        assert!(matches!(off.why, Reason::Io { .. } | Reason::KeyFile(_)), "{off:?}");
        assert_eq!(tree(root.dir.path()), before);
    }
    let given = DiskConfig { secret: SecretSource::Given(Secret::new([1; 32])), ..read_only() };
    assert!(root.open_with(given).is_err());
}

/// Everything below a folder, with its times.
fn tree(path: &Path) -> Vec<(String, std::time::SystemTime)> {
    let mut all = Vec::new();
    for name in support::list(path) {
        let path = path.join(name);
        let metadata = fs::symlink_metadata(&path).unwrap();
        all.push((path.display().to_string(), metadata.modified().unwrap()));
        if metadata.is_dir() {
            all.extend(tree(&path));
        }
    }
    all
}

/// Runs as another user, to whom modes apply; root may do everything.
#[test]
fn a_user_who_may_not_gets_no_tier_and_no_panic() {
    use std::os::unix::process::CommandExt as _;
    if !is_root() {
        return;
    }
    let root = used();
    let elsewhere = tempfile::tempdir().unwrap();
    chown(elsewhere.path(), Some(SOMEBODY_ELSE), Some(SOMEBODY_ELSE)).unwrap();
    let role = format!("user|{}|{}", root.dir.path().display(), elsewhere.path().display());
    match child(&role).uid(SOMEBODY_ELSE).gid(SOMEBODY_ELSE).output() {
        Ok(output) => {
            assert!(output.status.success(), "{output:?}");
            if String::from_utf8_lossy(&output.stdout).contains("skipped: ") {
                skip("second user: another one may not go where temporary files are");
            }
        }
        Err(error) => skip(&format!("second user: no process of another one: {error}")),
    }
    assert_eq!(root.open().load(&record("a").request()).found(), Some(record("a")));
    root.assert_quiet();
}

fn config(dir: &Path) -> DiskConfig {
    DiskConfig::new(dir.join("cache"), SecretSource::File(dir.join("state").join("cache.key")))
}

/// The part of [`a_user_who_may_not_gets_no_tier_and_no_panic`] that runs as another user: in
/// root's folders, in its own, and where its own are closed.
fn user(theirs: &Path, own: &Path) {
    if fs::read_dir(own).is_err() {
        return skip("second user: another one may not go here");
    }
    let log = support::Log::default();
    let open = |dir: &Path| DiskCache::open(config(dir), log.observer());
    let off = open(theirs).expect_err("root's folder");
    assert!(
        matches!(&off.why, Reason::Io { error, .. } if error.kind() == std::io::ErrorKind::PermissionDenied),
        "{off:?}"
    );
    // A readable folder of another user.
    set_mode(own, 0o700);
    let cache = open(own).unwrap();
    assert!(cache.store(&record("a")));
    let entries = own.join("cache").join("v1").join("entries");
    let entry = entries.join(record("a").name().to_string());
    // An unreadable file: reported and removed, without further effects.
    set_mode(&entry, 0o000);
    let before = cache.stats();
    assert_eq!(cache.load(&record("a").request()).found(), None);
    let after = cache.stats();
    assert_eq!((after.misses, after.damaged), (before.misses + 1, before.damaged + 1));
    assert!(log.take()[0].contains("its owner has no read permission"));
    assert!(!cache.may_have(&record("a").name()) && !is_there(&entry));
    // Nor a flight, marks or a quarantine.
    for (folder, name) in [
        ("flights", record("f").name().to_string()),
        ("marks", "0".repeat(32)),
        ("quarantine", record("q").name().to_string()),
    ] {
        let path = own.join("cache").join("v1").join(folder).join(name);
        fs::write(&path, "").unwrap();
        set_mode(&path, 0o000);
        assert!(matches!(
            open(own).unwrap().join(&record("f").request(), std::time::Duration::ZERO),
            JoinOutcome::Leader(_)
        ));
        assert!(!is_there(&path), "{folder}");
        assert_eq!(log.take(), Vec::<String>::new(), "{folder}");
    }
    assert!(cache.store(&record("a")));
    assert_eq!(cache.load(&record("a").request()).found(), Some(record("a")));
    assert_eq!(log.take(), Vec::<String>::new());
    // A folder without write access.
    set_mode(&entries, 0o500);
    assert_eq!(cache.load(&record("a").request()).found(), Some(record("a")));
    assert!(!cache.store(&record("b")));
    assert!(!cache.remove(&record("a").name()));
    assert!(cache.sweep_to(0).is_some_and(|swept| swept.entries == 1 && swept.evicted == 0));
    assert_eq!(log.take().len(), 2);
    set_mode(&own.join("cache"), 0o000);
    assert!(open(own).is_err());
    set_mode(&own.join("cache"), 0o700);
    set_mode(&entries, 0o700);
    assert_eq!(open(own).unwrap().load(&record("a").request()).found(), Some(record("a")));
    assert_eq!(log.take(), Vec::<String>::new());
}

/// The entry point of child processes; does nothing by itself.
#[test]
#[ignore = "a part of other tests"]
fn other_process() {
    let Some(role) = role() else { return };
    match &role.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["mask", mask, dir] => {
            rustix::process::umask(Mode::from_bits_truncate(mask.parse().unwrap()));
            let cache = DiskCache::open(config(Path::new(dir)), support::Log::default().observer()).unwrap();
            assert!(cache.store(&record("a")));
        }
        ["user", theirs, own] => user(Path::new(theirs), Path::new(own)),
        role => panic!("{role:?}"),
    }
}
