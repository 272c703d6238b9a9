package read

import (
	"slices"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/decode"
)

// setPositions notes where the parts stand that no two services can have in common, of all
// services of a document, whose list is at path.
func (p *reading) setPositions(doc *decode.Doc, list source.Path) {
	paths := make([][]source.Path, len(p.services))
	for i, s := range p.services {
		paths[i] = p.unique(s, slices.Concat(list, source.Path{{Index: i}}))
	}
	at := doc.Positions(slices.Concat(paths...))
	for i, s := range p.services {
		n := len(paths[i])
		s.SetPlaces(s.Pos, at[:n])
		at = at[n:]
	}
}

// setChunkPositions is setPositions for the service of a chunk, which is at path there.
func (p *reading) setChunkPositions(doc *decode.Doc, s *source.Service, path source.Path) {
	s.SetPlaces(source.Position{Line: 1, Col: 1}, doc.Positions(p.unique(s, path)))
}

// unique returns the paths of these parts of a service, which is at path, as they are written.
func (p *reading) unique(s *source.Service, path source.Path) []source.Path {
	paths := s.Unique()
	for i := range paths {
		paths[i] = slices.Concat(path, asWritten(paths[i], p.writtenAt[s]))
	}
	return paths
}
