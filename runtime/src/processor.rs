//! The host: its processor, as far as compiled code depends on it, and its memory.

use std::sync::OnceLock;

use fuseline_fusion::Bytes;

/// The memory of the host, with its swap space. `None` where the system does not report it.
pub(crate) fn memory() -> Option<Bytes> {
    static MEMORY: OnceLock<Option<Bytes>> = OnceLock::new();
    *MEMORY.get_or_init(|| parse_memory(&std::fs::read_to_string("/proc/meminfo").ok()?))
}

/// The sum of main memory and swap space in the format of `/proc/meminfo`.
fn parse_memory(text: &str) -> Option<Bytes> {
    let kib = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()
    };
    let total = kib("MemTotal:")?.saturating_add(kib("SwapTotal:").unwrap_or(0));
    Some(Bytes(total.saturating_mul(1024)))
}

/// The processor and its capabilities, as far as compilers consider them.
pub(crate) fn parts() -> Vec<(String, String)> {
    let mut parts = vec![("architecture".to_owned(), std::env::consts::ARCH.to_owned())];
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    // Fields that identify the processor. Others change with its clock or number.
    let which = [
        "vendor_id",
        "cpu family",
        "model",
        "model name",
        "stepping",
        "CPU implementer",
        "CPU architecture",
        "CPU variant",
        "CPU part",
        "CPU revision",
        "Features",
        "isa",
    ];
    let first = info.split("\n\n").next().unwrap_or_default();
    for line in first.lines() {
        if let Some((name, value)) = line.split_once(':')
            && which.contains(&name.trim())
        {
            parts.push((format!("processor {}", name.trim()), value.trim().to_owned()));
        }
    }
    // The kernel lists more flags than compilers use, and they vary with the kernel.
    #[cfg(target_arch = "x86_64")]
    parts.push(("processor extensions".to_owned(), extensions().join(" ")));
    parts
}

/// The instruction set extensions of this processor.
#[cfg(target_arch = "x86_64")]
fn extensions() -> Vec<&'static str> {
    macro_rules! detected {
        ($($name:tt)*) => {
            [$(($name, std::arch::is_x86_feature_detected!($name))),*]
        };
    }
    let all = detected!(
        "aes" "pclmulqdq" "rdrand" "rdseed" "tsc" "mmx" "sse" "sse2" "sse3" "ssse3" "sse4.1" "sse4.2" "sse4a" "sha" "avx"
        "avx2" "avx512f" "avx512cd" "avx512er" "avx512pf" "avx512bw" "avx512dq" "avx512vl" "avx512ifma" "avx512vbmi"
        "avx512vpopcntdq" "avx512vbmi2" "gfni" "vaes" "vpclmulqdq" "avx512vnni" "avx512bitalg" "avx512bf16"
        "avx512vp2intersect" "avx512fp16" "avxvnni" "avxifma" "avxneconvert" "avxvnniint8" "avxvnniint16" "f16c" "fma"
        "bmi1" "bmi2" "lzcnt" "tbm" "popcnt" "fxsr" "xsave" "xsaveopt" "xsaves" "xsavec" "cmpxchg16b" "adx" "rtm" "movbe"
        "ermsb"
    );
    all.into_iter().filter(|(_, has)| *has).map(|(name, _)| name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_processor_is_known() {
        let parts = parts();
        assert!(parts.len() >= 2, "{parts:?}");
    }

    #[test]
    fn memory_is_the_sum_of_main_memory_and_swap_space() {
        let text = "MemTotal:       24684088 kB\nMemFree:        7000 kB\nSwapTotal:          1024 kB\n";
        assert_eq!(parse_memory(text), Some(Bytes((24_684_088 + 1024) * 1024)));
        assert_eq!(parse_memory("MemTotal:  8 kB\n"), Some(Bytes(8192)));
        assert_eq!(parse_memory("SwapTotal:  8 kB\n"), None);
        assert_eq!(parse_memory("MemTotal:  many kB\n"), None);
    }
}
