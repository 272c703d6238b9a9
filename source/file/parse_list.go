package file

import (
	"path/filepath"
	"slices"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/decode"
)

// An endpointList is what a file of endpoints says, which another program writes: a list in
// JSON, or the key endpoints in JSON or TOML.
type endpointList struct {
	path      string
	text      []byte
	endpoints []endpoint
	hidden    bool // see Rules.hidden

	all   []source.Endpoint // endpoints without the ports that depend on the service
	port  bool              // one has such a port
	named bool              // one has ports by their names
}

// take has the list hold these endpoints.
func (l *endpointList) take(endpoints []endpoint) {
	l.endpoints, l.all, l.port, l.named = endpoints, slices.Grow([]source.Endpoint(nil), len(endpoints)), false, false
	for i := range endpoints {
		l.all = append(l.all, endpoints[i].Endpoint)
		l.port, l.named = l.port || endpoints[i].port != 0, l.named || endpoints[i].Ports != nil
	}
}

// sharedBy reports whether the endpoints of a service with such ports are just those of the list. Services are
// never changed, so all of them share one slice.
func (l *endpointList) sharedBy(w *writtenPorts) bool { return !l.port && (w.at == nil || !l.named) }

// listKey is the only key of such a file.
const listKey = "endpoints"

var listFields = []decode.Field[endpointList]{
	decode.Need(decode.Field[endpointList]{Key: listKey, Schema: endpointsSchema, Read: func(r *decode.Reader, v any, l *endpointList) {
		l.take(endpointsOf(r, v))
	}}),
}

// parseList reads the text of a file of endpoints: JSON when path ends in .json, else TOML. It
// returns every fault of it; unless all are warnings there is no list. A text without the key, even
// an empty one, is at fault. One of more endpoints than any service may have is not read further.
func parseList(path string, data []byte, most int) (*endpointList, []source.Fault) {
	if len(data) == 0 {
		return nil, []source.Fault{{Pos: source.Position{File: path}, Msg: "the file is empty", Hint: noEndpoints}}
	}
	doc, faults := decodeList(path, data)
	if doc == nil {
		return nil, faults
	}
	r := decode.NewReader(nil)
	r.Hint = listHint
	r.Limit(listKey, most, raiseEndpoints)
	l := &endpointList{path: path, text: data}
	decode.Table(r, doc.Root, listFields, l)
	if faults = append(faults, r.Faults(doc)...); source.AnyError(faults) {
		return nil, faults
	}
	return l, faults
}

func decodeList(path string, data []byte) (*decode.Doc, []source.Fault) {
	if filepath.Ext(path) == ".json" {
		return decode.JSONList(path, data, listKey)
	}
	return decode.TOML(path, data)
}

const noEndpoints = "write endpoints = [], in JSON [], for a list without endpoints"

// listHint says what was meant by a key that a file of endpoints does not have.
func listHint(path source.Path, key string) (meant, hint string) {
	switch {
	case len(path) == 0 && key == "services":
		return "", "a file of this name holds a list of endpoints only: give one with services another name"
	case len(path) == 0 && hasKey(endpointFields, key):
		return "", "it belongs to an endpoint: endpoints = [{ ... }]"
	}
	return keyHint(path, key)
}

// positions returns where parts of l stand, by their paths in a service.
func (l *endpointList) positions(paths []source.Path) []source.Position {
	doc, _ := decodeList(l.path, l.text)
	if doc == nil { // it was good when it was read
		return make([]source.Position, len(paths))
	}
	return doc.Positions(paths)
}
