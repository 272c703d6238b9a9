package read

import (
	"context"
	"path/filepath"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/decode"
)

// Parse reads the text of a service file: JSON when path ends in .json, else
// TOML. It returns its faults, up to the limit of decode.Cap, and
// one that says that there are more; unless all are warnings it returns no
// services. A text without the key services, even empty or all comments, is at
// fault: it may be cut off, and stale services are better than none. Who
// wants none says services = [].
func Parse(path string, data []byte) ([]*source.Service, []source.Fault) {
	return Rules{}.Parse(path, data)
}

// Parse is Parse under these rules. Of a file of endpoints, by its name, it returns only the faults.
// What services say about such files is not looked into.
func (rules Rules) Parse(path string, data []byte) ([]*source.Service, []source.Fault) {
	if IsEndpointsFile(filepath.Base(path)) {
		_, faults := parseList(path, data, rules.Limits.orDefault().Endpoints)
		return nil, faults
	}
	services, faults, _ := rules.ParseNew(context.Background(), path, data, nil)
	return services, faults
}

// ParseNew is Parse of a file of which some services are known. It returns all
// that are known of it then.
func (rules Rules) ParseNew(ctx context.Context, path string, data []byte, before KnownServices) ([]*source.Service, []source.Fault, KnownServices) {
	return rules.parse(ctx, path, data, filepath.Ext(path) == ".json", before)
}

func (rules Rules) parse(ctx context.Context, path string, data []byte, isJSON bool, before KnownServices) ([]*source.Service, []source.Fault, KnownServices) {
	limits := rules.Limits.orDefault()
	if rules.GuardPrograms && rules.From.URL == "" {
		rules.Check = with(rules.Check, rules.refusePrograms(path))
	}
	if rules.share != nil {
		rules.Check = with(rules.Check, rules.share.refuse)
	}
	switch {
	case len(data) == 0:
		return nil, []source.Fault{{Pos: source.Position{File: path}, Msg: "the file is empty", Hint: noServices}}, nil
	case len(data) > limits.FileSize:
		return nil, []source.Fault{tooLarge(path, limits.FileSize)}, nil
	}
	if services, faults, now, ok := rules.inChunks(ctx, path, data, isJSON, before); ok {
		return services, faults, now
	}
	services, faults := rules.parseWhole(path, data, isJSON)
	return services, faults, nil
}

// parseWhole reads a file in one go, and says what is wrong with it.
func (rules Rules) parseWhole(path string, data []byte, isJSON bool) ([]*source.Service, []source.Fault) {
	parse := decode.TOML
	if isJSON {
		parse = decode.JSON
	}
	doc, faults := parse(path, data)
	if doc == nil {
		return nil, faults
	}
	p := rules.newReading(nil)
	p.pos = doc.Elements("services")
	p.readRoot(doc.Root, isJSON)
	faults = append(faults, p.r.Faults(doc)...)
	if source.AnyError(faults) {
		return nil, faults
	}
	p.setPositions(doc, source.At("services"))
	return p.services, faults
}
