package decode

import "svcproxy.dev/svcproxy/source"

// JSONList decodes a text in JSON as JSON does, and also one that is no more than a list:
// that is read as the one key of an object.
func JSONList(file string, data []byte, key string) (*Doc, []source.Fault) {
	d := &Doc{file: file, json: true}
	return decode(d, data, func(s *scanner) (map[string]any, []textFault) {
		tree, faults := treeOf(s)
		list, ok := s.made.([]any)
		switch {
		case tree != nil || len(faults) == 0 || faults[0].hint != wantObject:
			return tree, faults
		case !ok:
			faults[0].hint = "want a list, or an object with the key " + source.Excerpt(key)
			return nil, faults
		}
		d.list = key
		return map[string]any{key: list}, s.twice
	})
}

// below returns what of paths is below a key, the others as the path of the whole text.
func below(key string, paths []source.Path) []source.Path {
	out := make([]source.Path, len(paths))
	for i, p := range paths {
		if p.Under(source.At(key)) {
			out[i] = p[1:]
		}
	}
	return out
}

// Problems returns everything found, with paths from the root, in the order in which it was found.
func (r *Reader) Problems() []source.Problem {
	out := make([]source.Problem, len(r.faults))
	for i, f := range r.faults {
		out[i] = source.Problem{Path: f.path, Msg: f.msg, Hint: f.hint, Warning: f.warning}
	}
	return out
}
