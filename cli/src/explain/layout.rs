//! Lays out the boxes of a graph in layers, from top to bottom.
//!
//! The method of Sugiyama, Tagawa and Toda (1981). Boxes are assigned to layers so that every edge
//! leads down. An edge that crosses a layer occupies a slot there, like a narrow box. Each layer is
//! sorted by the means of its neighbours, down and up in turn. Then each box moves as close to the
//! mean of its neighbours as the order allows (least squares under order constraints, by pooling
//! adjacent violators). The time is linear in boxes and crossed layers, except for the sorting.

/// The number of sweeps down and up, for the order and for the positions.
const SWEEPS: usize = 8;

/// The total number of layer crossings beyond which edges are drawn straight.
const MAX_BENDS: usize = 20_000;

/// The width of an edge that crosses a layer.
const LANE: f64 = 8.0;

/// Positions of boxes and edges. The top left corner of the whole is the origin.
#[derive(Clone, Debug, Default)]
pub(super) struct Layout {
    /// Top left corner of each box.
    pub(super) boxes: Vec<(f64, f64)>,
    /// Points that each edge goes through, from the bottom of one box to the top of another.
    pub(super) edges: Vec<Vec<(f64, f64)>>,
    pub(super) width: f64,
    pub(super) height: f64,
}

/// A slot in a layer: a box, or an edge that crosses.
struct Slot {
    width: f64,
    above: Vec<usize>,
    below: Vec<usize>,
    /// Left edge.
    x: f64,
}

/// Lays out boxes of the given sizes. Each edge leads from a box to one with a greater number.
pub(super) fn layout(sizes: &[(f64, f64)], edges: &[(usize, usize)], gap: (f64, f64)) -> Layout {
    debug_assert!(edges.iter().all(|(from, to)| from < to), "bug: an edge leads up");
    let layer = layers(sizes.len(), edges);
    let depth = layer.iter().max().map_or(0, |&last| last + 1);
    let mut slots: Vec<Slot> = sizes
        .iter()
        .map(|&(width, _)| Slot { width, above: Vec::new(), below: Vec::new(), x: 0.0 })
        .collect();
    let mut rows: Vec<Vec<usize>> = vec![Vec::new(); depth];
    for (index, &layer) in layer.iter().enumerate() {
        rows[layer].push(index);
    }
    let passed: usize = edges.iter().map(|&(from, to)| layer[to] - layer[from] - 1).sum();
    // Edges from one box share their way down.
    let mut chains: Vec<Vec<usize>> = vec![Vec::new(); sizes.len()];
    let mut routes = Vec::with_capacity(edges.len());
    for &(from, to) in edges {
        let bends = if passed > MAX_BENDS { 0 } else { layer[to] - layer[from] - 1 };
        while chains[from].len() < bends {
            let before = chains[from].last().copied().unwrap_or(from);
            let row = layer[from] + chains[from].len() + 1;
            let slot = slots.len();
            slots.push(Slot { width: LANE, above: vec![before], below: Vec::new(), x: 0.0 });
            slots[before].below.push(slot);
            rows[row].push(slot);
            chains[from].push(slot);
        }
        let last = bends.checked_sub(1).map_or(from, |bend| chains[from][bend]);
        slots[last].below.push(to);
        slots[to].above.push(last);
        routes.push(chains[from][..bends].to_vec());
    }
    order(&mut slots, &mut rows);
    place(&mut slots, &rows, gap.0);
    let left = slots.iter().map(|slot| slot.x).fold(f64::INFINITY, f64::min);
    let left = if left.is_finite() { left } else { 0.0 };
    let mut tops = Vec::with_capacity(depth);
    let mut heights = Vec::with_capacity(depth);
    let mut y = 0.0;
    for row in &rows {
        let height = row.iter().filter_map(|&slot| sizes.get(slot)).map(|size| size.1).fold(0.0, f64::max);
        tops.push(y);
        heights.push(height);
        y += height + gap.1;
    }
    let boxes: Vec<(f64, f64)> =
        layer.iter().enumerate().map(|(index, &layer)| (slots[index].x - left, tops[layer])).collect();
    let middle = |slot: usize| slots[slot].x - left + slots[slot].width / 2.0;
    let routed = edges.iter().zip(&routes).map(|(&(from, to), bends)| {
        let mut points = vec![(middle(from), boxes[from].1 + sizes[from].1)];
        for (step, &bend) in bends.iter().enumerate() {
            let row = layer[from] + step + 1;
            points.push((middle(bend), tops[row]));
            points.push((middle(bend), tops[row] + heights[row]));
        }
        points.push((middle(to), boxes[to].1));
        points
    });
    let routed = routed.collect();
    let width = slots.iter().map(|slot| slot.x - left + slot.width).fold(0.0, f64::max);
    Layout { boxes, edges: routed, width, height: (y - gap.1).max(0.0) }
}

/// The layer of each box: below all its predecessors. A box without predecessors is right above its
/// first user.
fn layers(count: usize, edges: &[(usize, usize)]) -> Vec<usize> {
    let mut layer = vec![0; count];
    let mut sorted = edges.to_vec();
    sorted.sort_unstable();
    for &(from, to) in &sorted {
        layer[to] = layer[to].max(layer[from] + 1);
    }
    let mut first_user = vec![None; count];
    let mut has_source = vec![false; count];
    for &(from, to) in edges {
        let user: &mut Option<usize> = &mut first_user[from];
        *user = Some(user.map_or(layer[to], |user: usize| user.min(layer[to])));
        has_source[to] = true;
    }
    for (index, user) in first_user.into_iter().enumerate() {
        if let (false, Some(user)) = (has_source[index], user) {
            layer[index] = user - 1;
        }
    }
    layer
}

/// Sorts each row by the means of its neighbours.
fn order(slots: &mut [Slot], rows: &mut [Vec<usize>]) {
    let mut rank = vec![0.0; slots.len()];
    let number = |row: &[usize], rank: &mut [f64]| {
        for (position, &slot) in row.iter().enumerate() {
            rank[slot] = position as f64;
        }
    };
    rows.iter().for_each(|row| number(row, &mut rank));
    for sweep in 0..SWEEPS {
        let down = sweep % 2 == 0;
        let last = rows.len();
        for step in 0..last {
            let row = &mut rows[if down { step } else { last - 1 - step }];
            let mut keys: Vec<(f64, usize)> = row
                .iter()
                .map(|&slot| {
                    let near = if down { &slots[slot].above } else { &slots[slot].below };
                    (mean(near, |&near| rank[near]).unwrap_or(rank[slot]), slot)
                })
                .collect();
            keys.sort_by(|a, b| a.0.total_cmp(&b.0));
            *row = keys.into_iter().map(|(_, slot)| slot).collect();
            number(row, &mut rank);
        }
    }
}

fn mean<T>(items: &[T], value: impl Fn(&T) -> f64) -> Option<f64> {
    (!items.is_empty()).then(|| items.iter().map(value).sum::<f64>() / items.len() as f64)
}

/// Moves boxes towards their neighbours without changing any order.
fn place(slots: &mut [Slot], rows: &[Vec<usize>], gap: f64) {
    for row in rows {
        let mut x = 0.0;
        for &slot in row {
            slots[slot].x = x;
            x += slots[slot].width + gap;
        }
    }
    for sweep in 0..SWEEPS {
        let down = sweep % 2 == 0;
        for step in 0..rows.len() {
            let row = &rows[if down { step } else { rows.len() - 1 - step }];
            let wanted: Vec<f64> = row
                .iter()
                .map(|&slot| {
                    let near = if down { &slots[slot].above } else { &slots[slot].below };
                    let middle = mean(near, |&near| slots[near].x + slots[near].width / 2.0);
                    middle.map_or(slots[slot].x, |middle| middle - slots[slot].width / 2.0)
                })
                .collect();
            // After subtracting the widths to the left, the positions only need to be
            // non-decreasing.
            let mut offset = 0.0;
            let mut offsets = Vec::with_capacity(row.len());
            for &slot in row {
                offsets.push(offset);
                offset += slots[slot].width + gap;
            }
            let targets: Vec<f64> =
                wanted.iter().zip(&offsets).map(|(wanted, offset)| wanted - offset).collect();
            for ((&slot, place), offset) in row.iter().zip(pool(&targets)).zip(offsets) {
                slots[slot].x = place + offset;
            }
        }
    }
}

/// The non-decreasing sequence with the least squared distance to `targets`.
fn pool(targets: &[f64]) -> Vec<f64> {
    let mut blocks: Vec<(f64, usize)> = Vec::new();
    for &target in targets {
        let mut block = (target, 1);
        while let Some(&(sum, count)) = blocks.last()
            && sum / count as f64 >= block.0 / block.1 as f64
        {
            blocks.pop();
            block = (block.0 + sum, block.1 + count);
        }
        blocks.push(block);
    }
    blocks.into_iter().flat_map(|(sum, count)| std::iter::repeat_n(sum / count as f64, count)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn overlaps(layout: &Layout, sizes: &[(f64, f64)]) -> bool {
        let apart = |a: usize, b: usize| {
            let ((ax, ay), (bx, by)) = (layout.boxes[a], layout.boxes[b]);
            let ((aw, ah), (bw, bh)) = (sizes[a], sizes[b]);
            let before = |end: f64, start: f64| end <= start + 1e-6;
            before(ax + aw, bx) || before(bx + bw, ax) || before(ay + ah, by) || before(by + bh, ay)
        };
        (0..sizes.len()).any(|a| (0..a).any(|b| !apart(a, b)))
    }

    #[test]
    fn boxes_do_not_overlap_and_edges_lead_down() {
        let sizes: Vec<(f64, f64)> =
            (0..30).map(|i| (20.0 + f64::from(i % 7) * 9.0, 20.0 + f64::from(i % 3))).collect();
        let edges: Vec<(usize, usize)> = (1..30usize)
            .flat_map(|i| [(i / 2, i), (i * 7 % 5, i), (i.saturating_sub(5), i)])
            .filter(|(from, to)| from < to)
            .collect();
        let layout = layout(&sizes, &edges, (10.0, 20.0));
        assert!(!overlaps(&layout, &sizes), "{layout:?}");
        for (&(from, to), points) in edges.iter().zip(&layout.edges) {
            assert!(layout.boxes[from].1 < layout.boxes[to].1);
            assert!(points.windows(2).all(|pair| pair[0].1 <= pair[1].1), "{points:?}");
        }
        assert!(layout.boxes.iter().all(|&(x, y)| x >= 0.0 && y >= 0.0));
        let inside = |(&(x, y), &(w, h)): (&(f64, f64), &(f64, f64))| {
            x + w <= layout.width + 1e-9 && y + h <= layout.height + 1e-9
        };
        assert!(layout.boxes.iter().zip(&sizes).all(inside));
    }

    #[test]
    fn a_source_stands_above_its_user() {
        let sizes = [(10.0, 10.0); 4];
        let layout = layout(&sizes, &[(0, 2), (2, 3), (1, 3)], (5.0, 5.0));
        assert_eq!(layout.boxes[1].1, layout.boxes[2].1);
    }

    #[test]
    fn nothing_has_no_size() {
        let nothing = layout(&[], &[], (5.0, 5.0));
        assert_eq!((nothing.width, nothing.height), (0.0, 0.0));
    }

    #[test]
    fn pooling_keeps_order_and_means() {
        assert_eq!(pool(&[1.0, 3.0, 2.0, 4.0]), [1.0, 2.5, 2.5, 4.0]);
        assert_eq!(pool(&[3.0, 2.0, 1.0]), [2.0, 2.0, 2.0]);
    }
}
