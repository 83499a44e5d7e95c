{# In the main of a product that goes tile by tile: where the workgroup's tile is, from row0 and col0 on, and where its
batch entry is, `s`. #}
    // bands of eight tile rows, column by column within a band: neighbouring workgroups share rows of A and columns of B
    let tiles = p.tiles_m * p.tiles_n;
    let tile = group % tiles;
    let band = tile / (8u * p.tiles_n);
    let band_rows = min(p.tiles_m - band * 8u, 8u);
    let in_band = tile - band * 8u * p.tiles_n;
    let row0 = (band * 8u + in_band % band_rows) * {{ bm }}u;
    let col0 = in_band / band_rows * {{ bn }}u;
    let s = bases(group / tiles);
