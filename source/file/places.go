package file

import (
	"path/filepath"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/decode"
)

// EndpointPlaces returns where the endpoints of a service stand in its file, in their
// order; nil if the file no longer has the service where it was read, as it was. It reads
// the file: nobody keeps the places of a million endpoints.
func (rules Rules) EndpointPlaces(svc *source.Service) []source.Position {
	data, _, err := readContent(svc.Pos.File, rules.maxSize())
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
