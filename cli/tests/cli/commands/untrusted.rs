//! Malicious files and names.

use super::*;

/// Inputs that are not files of a sensible size are refused before they are read: an endless
/// device, a pipe without a writer, a folder, a file larger than programs may be.
#[test]
fn what_is_no_program_file_is_not_read() {
    let folder = Folder::new("no-files");
    let pipe = folder.0.join("pipe.json");
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR)
        .expect("a pipe");
    let (huge, empty) = (folder.0.join("huge.json"), folder.0.join("zeros.json"));
    std::fs::File::create(&huge).and_then(|file| file.set_len(1 << 40)).expect("a sparse file");
    // Of a permitted size, without a byte of text.
    std::fs::File::create(&empty).and_then(|file| file.set_len(1 << 30)).expect("a sparse file");
    for command in ["run", "explain"] {
        for (path, words) in [
            (Path::new("/dev/zero"), "it is a device, not a file"),
            (&pipe, "it is a named pipe, not a file"),
            (&folder.0, "it is a folder, not a file"),
            (&huge, "it has 1099511627776 bytes"),
            (&empty, "expected value"),
        ] {
            let answer = fuseline(&[command.as_ref(), path.as_os_str()]).ends_with(2);
            assert!(answer.err.contains(words), "{command} {}: {}", path.display(), answer.err);
        }
        // Through standard input too.
        let zeros = std::fs::File::open("/dev/zero").expect("there are zeros");
        let answer = Answer::of(tool().args([command, "-"]).stdin(zeros).output().expect("the tool starts"));
        answer.ends_with(2);
    }
    // A pipe that the shell passes is read.
    let tool = env!("CARGO_BIN_EXE_fuseline");
    let script = format!("exec {tool} run --device reference <(cat {})", example("attention").display());
    if let Ok(output) = Command::new("bash").args(["-c", &script]).output() {
        Answer::of(output).ends_with(0);
    }
}

/// A module that claims large arguments gets no zeros for them.
#[test]
fn a_module_of_large_arguments_is_refused() {
    let folder = Folder::new("large");
    let text = "func.func @main(%x: tensor<1099511627776xf32>) -> tensor<1099511627776xf32> {\n\
                return %x : tensor<1099511627776xf32>\n}\n";
    let module = folder.file("large.mlir", text);
    for command in ["run", "explain", "import"] {
        let answer = fuseline(&[command.as_ref(), module.as_os_str()]).ends_with(2);
        assert!(answer.err.contains("take 4398046511104 bytes"), "{}", answer.err);
    }
}

/// Names of programs, files and devices with terminal control sequences are escaped, on both
/// outputs, in text and in JSON.
#[test]
fn a_terminal_obeys_no_name() {
    let folder = Folder::new("escapes");
    let named = WRONG.replace("doubled", r"\u001b]0;owned\u0007\u009b2J\u202e");
    assert_ne!(named, WRONG);
    let program = folder.file("x.json", &named);
    let hidden = |text: &str| {
        text.chars()
            .find(|letter| letter.is_control() && *letter != '\n' && *letter != '\t' || *letter == '\u{202e}')
    };
    let says = |answer: &Answer| {
        assert_eq!(
            (hidden(&answer.out), hidden(&answer.err)),
            (None, None),
            "{:?} {:?}",
            answer.out,
            answer.err
        );
    };
    for more in
        [&[][..], &["--json"], &["--dump", "events"], &["--dump", "regions"], &["--dump", "stablehlo"]]
    {
        let answer = reference("run", &program, more);
        says(&answer);
        if more.is_empty() {
            assert!(answer.out.contains(r"\u{1b}]0;owned\u{7}\u{9b}2J\u{202e}"), "{}", answer.out);
        }
        if more == ["--json"] {
            assert_eq!(answer.json()["program"]["name"], "\u{1b}]0;owned\u{7}\u{9b}2J\u{202e}");
        }
    }
    let page = folder.0.join("x.html");
    says(&reference("explain", &program, &["-o", page.to_str().expect("UTF-8")]));
    assert_eq!(hidden(&std::fs::read_to_string(&page).expect("a page")), None);
    // A missing file, an unknown op, a device with a strange name.
    let nasty = "\u{1b}[31mx\u{9b}.json";
    let answer = fuseline(&["run", nasty]).ends_with(2);
    says(&answer);
    assert!(answer.err.contains(r"\u{1b}[31mx\u{9b}.json"), "{}", answer.err);
    let strange = folder.file(nasty, WRONG.replace("stablehlo.", r"stablehlo.\u001b[2J"));
    says(&fuseline(&["run".as_ref(), strange.as_os_str()]).ends_with(2));
    says(&fuseline(&["run", folder.file("y.json", WRONG).to_str().expect("UTF-8"), "--device", nasty]));
}
