//! A profile's sums as a table of text.

use std::fmt::Write;
use std::time::Duration;

use super::{Average, CudaTimes, Profile};

/// The figure that the rows of a table are sorted by, the largest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SortBy {
    /// [`Average::own`].
    #[default]
    OwnTime,
    /// [`Average::total`].
    TotalTime,
    /// [`Average::own_device`].
    OwnDeviceTime,
    /// [`Average::device`].
    DeviceTime,
    /// [`Average::own_cpu_bytes`].
    OwnCpuMemory,
    /// [`Average::cpu_bytes`].
    CpuMemory,
    /// [`Average::own_device_bytes`].
    OwnDeviceMemory,
    /// [`Average::device_bytes`].
    DeviceMemory,
    /// [`Average::calls`].
    Calls,
    /// [`Average::total`] of one call.
    TimeOfCall,
    /// [`Average::device`] of one call.
    DeviceTimeOfCall,
}

impl SortBy {
    /// Each figure by the name that PyTorch's `table(sort_by=)` gives it.
    pub const NAMES: [(&'static str, Self); 11] = [
        ("self_cpu_time_total", Self::OwnTime),
        ("cpu_time_total", Self::TotalTime),
        ("self_device_time_total", Self::OwnDeviceTime),
        ("device_time_total", Self::DeviceTime),
        ("self_cpu_memory_usage", Self::OwnCpuMemory),
        ("cpu_memory_usage", Self::CpuMemory),
        ("self_device_memory_usage", Self::OwnDeviceMemory),
        ("device_memory_usage", Self::DeviceMemory),
        ("count", Self::Calls),
        ("cpu_time", Self::TimeOfCall),
        ("device_time", Self::DeviceTimeOfCall),
    ];

    /// Returns the figure with this name, also in PyTorch's older spelling `cuda` for `device`.
    pub fn named(name: &str) -> Option<Self> {
        let name = name.replace("cuda", "device");
        Self::NAMES.into_iter().find(|(other, _)| *other == name).map(|(_, figure)| figure)
    }

    fn of(self, row: &Average) -> i128 {
        match self {
            Self::OwnTime => row.own.as_nanos() as i128,
            Self::TotalTime => row.total.as_nanos() as i128,
            Self::OwnDeviceTime => row.own_device.as_nanos() as i128,
            Self::DeviceTime => row.device.as_nanos() as i128,
            Self::OwnCpuMemory => row.own_cpu_bytes.into(),
            Self::CpuMemory => row.cpu_bytes.into(),
            Self::OwnDeviceMemory => row.own_device_bytes.into(),
            Self::DeviceMemory => row.device_bytes.into(),
            Self::Calls => row.calls.into(),
            Self::TimeOfCall => of_call(row.total, row).as_nanos() as i128,
            Self::DeviceTimeOfCall => of_call(row.device, row).as_nanos() as i128,
        }
    }
}

/// The form of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableOptions {
    /// The figure to sort by.
    pub sort: SortBy,
    /// The most rows.
    pub rows: usize,
    /// The most characters of a name. Longer ones are cut.
    pub name_width: usize,
    /// The most characters of the sizes of arguments. Longer ones are cut.
    pub shapes_width: usize,
}

impl Default for TableOptions {
    /// Returns the defaults of PyTorch's `table`, sorted by own time.
    fn default() -> Self {
        Self { sort: SortBy::default(), rows: 100, name_width: 55, shapes_width: 80 }
    }
}

impl Profile {
    /// Returns a table of the [averages](Self::averages): at most `rows` rows, sorted. PyTorch's
    /// `key_averages().table()`.
    pub fn table(&self, sort: SortBy, rows: usize) -> String {
        self.table_of(self.averages(false), TableOptions { sort, rows, ..TableOptions::default() })
    }

    /// Returns a table of some averages of this profile.
    pub fn table_of(&self, mut averages: Vec<Average>, options: TableOptions) -> String {
        let TableOptions { sort, rows, name_width, shapes_width } = options;
        averages.sort_by_key(|row| std::cmp::Reverse(sort.of(row)));
        let own: Duration = averages.iter().map(|row| row.own).sum();
        let has_shapes = averages.iter().any(|row| !row.shapes.is_empty());
        let has_memory = !self.memory_use.is_empty();
        let has_devices = !self.activities.is_empty() || self.memory_use.iter().any(|it| !it.device.is_cpu());
        let whole = own.as_secs_f64().max(f64::MIN_POSITIVE);
        let mut columns = vec![
            Column::new("name", move |row| name(row, name_width)),
            Column::new("own", |row| us(row.own)),
            Column::new("own %", move |row| format!("{:.1}%", 100.0 * row.own.as_secs_f64() / whole)),
            Column::new("total", |row| us(row.total)),
            Column::new("each", |row| us(of_call(row.total, row))),
        ];
        if has_devices {
            columns.push(Column::new("own device", |row| us(row.own_device)));
            columns.push(Column::new("device", |row| us(row.device)));
        }
        if has_memory {
            columns.push(Column::new("own CPU memory", |row| bytes(row.own_cpu_bytes)));
            columns.push(Column::new("CPU memory", |row| bytes(row.cpu_bytes)));
        }
        if has_memory && has_devices {
            columns.push(Column::new("own device memory", |row| bytes(row.own_device_bytes)));
            columns.push(Column::new("device memory", |row| bytes(row.device_bytes)));
        }
        columns.push(Column::new("calls", |row| row.calls.to_string()));
        if has_shapes {
            columns.push(Column::new("shapes", move |row| cut(&format!("{:?}", row.shapes), shapes_width)));
        }
        averages.truncate(rows);
        let mut text = lines(&columns, &averages);
        let _ = writeln!(text, "\nown time on the host: {}", us(own));
        for (device, time) in self.device_times() {
            let _ = writeln!(text, "time of the work of {device}: {}", us(time));
        }
        for it in &self.memory_use {
            let [start, peak, end] = [it.start, it.peak, it.end].map(|it| bytes(i64::try_from(it).unwrap_or(i64::MAX)));
            let _ =
                writeln!(text, "memory of {}: {start} at the start, {peak} at the peak, {end} at the end", it.device);
        }
        if let CudaTimes::Launches { reason } = &self.cuda {
            let _ = writeln!(text, "CUDA devices: only the times of launches, of Tenure's own kernels: {reason}");
        }
        if self.dropped > 0 {
            let _ = writeln!(text, "{} events were not kept: there were too many", self.dropped);
        }
        text
    }
}

/// A column: its heading, and the text of a row.
struct Column {
    head: &'static str,
    cell: Box<dyn Fn(&Average) -> String>,
}

impl Column {
    fn new(head: &'static str, cell: impl Fn(&Average) -> String + 'static) -> Self {
        Self { head, cell: Box::new(cell) }
    }
}

/// Returns the time of one call, given that of all.
fn of_call(all: Duration, row: &Average) -> Duration {
    all / u32::try_from(row.calls.max(1)).unwrap_or(u32::MAX)
}

/// Returns a row's name, on one line and cut to a width. A kernel may have an operation's.
fn name(row: &Average, width: usize) -> String {
    let mut name = String::new();
    for sign in row.name.chars() {
        match sign.is_control() {
            true => name.extend(sign.escape_default()),
            false => name.push(sign),
        }
    }
    let name = cut(&name, width);
    if row.is_device_work { format!("{name} (device)") } else { name }
}

/// Returns the beginning of a text that has more than `width` characters, with an ellipsis.
fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let beginning: String = text.chars().take(width.saturating_sub(3)).collect();
    format!("{beginning}...")
}

/// Formats rows under headings, each column as wide as needed: the first aligned left, the others right.
fn lines(columns: &[Column], rows: &[Average]) -> String {
    let heads = columns.iter().map(|column| column.head.to_owned()).collect::<Vec<_>>();
    let cells = rows.iter().map(|row| columns.iter().map(|column| (column.cell)(row)).collect());
    let all: Vec<Vec<String>> = std::iter::once(heads).chain(cells).collect();
    let widths = (0..columns.len()).map(|at| all.iter().map(|row| row[at].chars().count()).max().unwrap_or(0));
    let widths: Vec<usize> = widths.collect();
    let mut text = String::new();
    for row in &all {
        let cells = row.iter().zip(&widths).enumerate().map(|(at, (cell, &width))| match at {
            0 => format!("{cell:<width$}"),
            _ => format!("{cell:>width$}"),
        });
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}

/// Writes a time with a unit.
fn us(time: Duration) -> String {
    match time.as_nanos() as f64 / 1000.0 {
        us if us >= 1e6 => format!("{:.3} s", us / 1e6),
        us if us >= 1e3 => format!("{:.3} ms", us / 1e3),
        us => format!("{us:.3} µs"),
    }
}

/// Writes a number of bytes with a unit.
fn bytes(count: i64) -> String {
    const UNITS: [(i64, &str); 3] = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    let unit = UNITS.iter().find(|(bytes, _)| count.abs() >= *bytes);
    unit.map_or_else(|| format!("{count} B"), |(bytes, name)| format!("{:.2} {name}", count as f64 / *bytes as f64))
}
