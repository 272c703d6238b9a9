package read

import (
	"path/filepath"
	"slices"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/decode"
)

// An EndpointList is what a file of endpoints says, which another program writes: a list in
// JSON, or the key endpoints in JSON or TOML.
type EndpointList struct {
	path      string
	text      []byte
	Endpoints []endpoint
	hidden    bool // see Rules.Hidden

	All   []source.Endpoint // endpoints without the ports that depend on the service
	count source.EndpointCount
	port  bool // one has such a port
	named bool // one has ports by their names
}

// take has the list hold these endpoints.
func (l *EndpointList) take(endpoints []endpoint) {
	l.Endpoints, l.All = endpoints, slices.Grow([]source.Endpoint(nil), len(endpoints))
	for i := range endpoints {
		l.All = append(l.All, endpoints[i].Endpoint)
		l.count.Add(&endpoints[i].Endpoint)
		l.port, l.named = l.port || endpoints[i].Port != 0, l.named || endpoints[i].Ports != nil
	}
}

// sharedBy reports whether the endpoints of a service with such ports are just those of the list. Services are
// never changed, so all of them share one slice.
func (l *EndpointList) sharedBy(w *writtenPorts) bool { return !l.port && (w.at == nil || !l.named) }

// ListKey is the only key of such a file.
const ListKey = "endpoints"

var listFields = []decode.Field[EndpointList]{
	decode.Need(decode.Field[EndpointList]{Key: ListKey, Schema: endpointsSchema, Read: func(r *decode.Reader, v any, l *EndpointList) {
		l.take(endpointsOf(r, v))
	}}),
}

// parseList reads the text of a file of endpoints: JSON when path ends in .json, else TOML. It
// returns every fault of it; unless all are warnings there is no list. A text without the key, even
// an empty one, is at fault. One of more endpoints than any service may have is not read further.
func parseList(path string, data []byte, most int) (*EndpointList, []source.Fault) {
	if len(data) == 0 {
		return nil, []source.Fault{{Pos: source.Position{File: path}, Msg: "the file is empty", Hint: noEndpoints}}
	}
	doc, faults := decodeList(path, data)
	if doc == nil {
		return nil, faults
	}
	r := decode.NewReader(nil)
	r.Hint = listHint
	r.Limit(ListKey, most, raiseEndpoints)
	l := &EndpointList{path: path, text: data}
	decode.Table(r, doc.Root, listFields, l)
	if faults = append(faults, r.Faults(doc)...); source.AnyError(faults) {
		return nil, faults
	}
	return l, faults
}

func decodeList(path string, data []byte) (*decode.Doc, []source.Fault) {
	if filepath.Ext(path) == ".json" {
		return decode.JSONList(path, data, ListKey)
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

// Text returns what it was read from.
func (l *EndpointList) Text() []byte { return l.text }

// Positions returns where parts of l stand, by their paths in a service.
func (l *EndpointList) Positions(paths []source.Path) []source.Position {
	doc, _ := decodeList(l.path, l.text)
	if doc == nil { // it was good when it was read
		return make([]source.Position, len(paths))
	}
	return doc.Positions(paths)
}
