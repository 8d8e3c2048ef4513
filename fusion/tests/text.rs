//! Modules as text.
#![allow(missing_docs, reason = "a test")]

use fuseline_fusion::text::TextModule;

#[test]
fn try_all() {
    let Ok(dir) = std::env::var("TRY_DIR") else { return };
    let mut paths: Vec<_> = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect();
    paths.sort();
    for path in paths {
        if path.extension().is_none_or(|e| e != "mlir") {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        match TextModule::parse(&text) {
            Ok(m) => println!(
                "{}: ok, {} ops, {} params",
                path.display(),
                m.main().graph().nodes().len(),
                m.main().graph().params().len()
            ),
            Err(e) => println!("{}: {e}", path.display()),
        }
    }
}
