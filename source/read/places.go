package read

import (
	"path/filepath"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/decode"
	"svcproxy.dev/svcproxy/source/disk"
)

// EndpointPlaces returns where the endpoints of a service stand in its file, in their
// order; nil if the file no longer has the service where it was read, as it was. It reads
// the file, or the list that they are from: nobody keeps the places of a million endpoints.
func (rules Rules) EndpointPlaces(svc *source.Service) []source.Position {
	if svc.EndpointsFrom != "" {
		return rules.listPlaces(svc)
	}
	data, _, err := disk.ReadContent(svc.Pos.File, rules.MaxSize())
	if err != nil {
		return nil
	}
	parse := decode.TOML
	if filepath.Ext(svc.Pos.File) == ".json" {
		parse = decode.JSON
	}
	doc, faults := parse(svc.Pos.File, data)
	if doc == nil || len(faults) > 0 {
		return nil
	}
	services, _ := rules.parseWhole(svc.Pos.File, data, filepath.Ext(svc.Pos.File) == ".json")
	for i, s := range services {
		if s.Pos != svc.Pos || !s.Equal(svc) {
			continue
		}
		paths := make([]source.Path, len(s.Endpoints))
		for k := range paths {
			paths[k] = source.At("services", i, "endpoints", k)
		}
		return doc.Positions(paths)
	}
	return nil
}

// listPlaces is EndpointPlaces of a service with a list.
func (rules Rules) listPlaces(svc *source.Service) []source.Position {
	dir := filepath.Dir(svc.Pos.File)
	l, _ := rules.listsOf(disk.NewAsker(dir), dir)(svc.EndpointsFrom)
	if l == nil {
		return nil
	}
	if now, _ := rules.with(svc, l.List); !now.Equal(svc) {
		return nil
	}
	paths := make([]source.Path, len(svc.Endpoints))
	for i := range paths {
		paths[i] = source.At(ListKey, i)
	}
	return l.List.Positions(paths)
}
