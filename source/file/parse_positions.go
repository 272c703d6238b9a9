package file

import (
	"slices"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/decode"
)

// setPositions notes where the parts stand that no two services can have in common, of all
// services of a document, whose list is at path.
func setPositions(doc *decode.Doc, services []*source.Service, list source.Path) {
	paths := make([][]source.Path, len(services))
	for i, s := range services {
		paths[i] = below(slices.Concat(list, source.Path{{Index: i}}), s.Unique())
	}
	at := doc.Positions(slices.Concat(paths...))
	for i, s := range services {
		n := len(paths[i])
		s.SetPlaces(s.Pos, at[:n])
		at = at[n:]
	}
}

// setChunkPositions is setPositions for the service of a chunk, which is at path there.
func setChunkPositions(doc *decode.Doc, s *source.Service, path source.Path) {
	s.SetPlaces(source.Position{Line: 1, Col: 1}, doc.Positions(below(path, s.Unique())))
}

// below returns paths as they are below another.
func below(path source.Path, paths []source.Path) []source.Path {
	for i := range paths {
		paths[i] = slices.Concat(path, paths[i])
	}
	return paths
}
