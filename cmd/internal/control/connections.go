package control

import "cmp"

// connections writes of each source that has one how it reaches its server, and
// the objects of it that are not used as they stand.
func (t *table) connections(st *Status) {
	for _, src := range st.Sources {
		if src.Connection == nil {
			continue
		}
		t.line("")
		t.row("SOURCE", "SERVER", "STATE", "SINCE")
		state := "connected"
		if !src.Connection.Connected {
			state = "stale: " + src.Connection.Error
		}
		t.row(src.Source, cmp.Or(src.Connection.Server, "-"), state, age(t.now, src.Connection.Since))
		if len(src.Objects) == 0 {
			continue
		}
		t.line("")
		t.row("OBJECT", "STATE", "SINCE")
		for _, o := range src.Objects {
			t.row(o.Path, string(o.State), age(t.now, o.Since))
		}
	}
}
