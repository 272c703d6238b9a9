package read

import (
	"path/filepath"
	"slices"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/decode"
	"svcproxy.dev/svcproxy/source/disk"
)

// EndpointPlaces returns where the endpoints of a service stand in its file, in their
// order; nil if the file no longer has the service where it was read, as it was, or is a text of a server. It reads
// the file, or the list that they are from: nobody keeps the places of a million endpoints.
func (rules Rules) EndpointPlaces(svc *source.Service) []source.Position {
	if IsTextName(svc.Pos.File) {
		return nil
	}
	if svc.EndpointsFrom != "" {
		dir := filepath.Dir(svc.Pos.File)
		rules.From.Accepted = true // its owner was asked when it was
		l, _ := rules.listsOf(disk.NewAsker(dir), dir)(svc.EndpointsFrom)
		if l == nil {
			return nil
		}
		if now, _ := rules.with(svc, l.List); !now.Equal(svc) {
			return nil
		}
		return l.List.Positions(endpointPaths(svc))
	}
	data, _, err := disk.ReadContent(svc.Pos.File, rules.MaxSize())
	if err != nil {
		return nil
	}
	isJSON := filepath.Ext(svc.Pos.File) == ".json"
	parse := decode.TOML
	if isJSON {
		parse = decode.JSON
	}
	doc, faults := parse(svc.Pos.File, data)
	if doc == nil || len(faults) > 0 {
		return nil
	}
	services, _ := rules.parseWhole(svc.Pos.File, data, isJSON)
	for i, s := range services {
		if s.Pos == svc.Pos && s.Equal(svc) {
			return doc.Positions(endpointPaths(svc, source.At("services", i)...))
		}
	}
	return nil
}

// endpointPaths returns the paths of the endpoints of a service, whose own is at.
func endpointPaths(svc *source.Service, at ...source.Step) []source.Path {
	paths := make([]source.Path, len(svc.Endpoints))
	for i := range paths {
		paths[i] = slices.Concat(at, source.At(ListKey, i))
	}
	return paths
}
