// Package convert makes a service file of what another program has: the
// configuration of keepalived or HAProxy, what ipvsadm-save or iptables-save
// print, objects of Kubernetes, or the state file of Cilium.
//
//	text ──► a format's reader ──► Result ──► Judge ──► TOML and notes
//
// Each format has a package, and package reader what they share. A reader makes services of the
// project's own model and a Note, with its position, of everything that it cannot carry over. The Judge holds each service to what
// service files are held to; one that would be refused is printed as a comment, with the fault.
// All input is hostile: bounded in size, in nesting and in what it grows to.
package convert

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"unicode/utf16"

	"svcproxy.dev/svcproxy/cmd/internal/convert/haproxy"
	"svcproxy.dev/svcproxy/cmd/internal/convert/iptables"
	"svcproxy.dev/svcproxy/cmd/internal/convert/ipvs"
	"svcproxy.dev/svcproxy/cmd/internal/convert/keepalived"
	"svcproxy.dev/svcproxy/cmd/internal/convert/kubernetes"
	"svcproxy.dev/svcproxy/cmd/internal/convert/reader"
	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/decode"
)

// A Format is a program whose configuration can be converted.
type Format struct {
	Name string
	Of   string // what FILE is, for people
	read func(reader.Input) *reader.Result
}

// Formats are all of them, in the order of the documentation.
var Formats = []Format{
	{"keepalived", "keepalived.conf, with what it includes", keepalived.Read},
	{"ipvsadm", "what ipvsadm-save or ipvsadm -Sn prints", ipvs.Read},
	{"iptables", "what iptables-save or ip6tables-save prints: kube-proxy's rules, Docker's, your own DNAT", iptables.Read},
	{"haproxy", "haproxy.cfg, of which sections of mode tcp are read", haproxy.Read},
	{"kubernetes", "Services with EndpointSlices or Endpoints, of YAML or JSON", kubernetes.Read},
	{"cilium", "the file of --lb-state-file of Cilium's load balancer", kubernetes.ReadCilium},
}

// Named returns the format of a name.
func Named(name string) (Format, error) {
	for _, f := range Formats {
		if f.Name == name {
			return f, nil
		}
	}
	return Format{}, fmt.Errorf("unknown format %s; %s", source.Excerpt(name), decode.WantWord(name, Names()))
}

// Names returns the names of all formats.
func Names() (names []string) {
	for _, f := range Formats {
		names = append(names, f.Name)
	}
	return names
}

// Read reads an input. The error says, with its position, why it cannot be read at all.
func (f Format) Read(in reader.Input) (r *reader.Result, err error) {
	defer reader.Catch(&err)
	if len(in.Data) > reader.MaxSize {
		reader.Fail(reader.Position{File: in.Name}, "it has more than %d bytes", reader.MaxSize)
	}
	in.Data = plainText(in.Data)
	if i := bytes.IndexByte(in.Data, 0); i >= 0 {
		at := reader.Position{File: in.Name, Line: 1 + bytes.Count(in.Data[:i], []byte{'\n'})}
		reader.Fail(at, "a byte of the line is 0: it is no text of UTF-8; write it as one, as iconv -t UTF-8 does")
	}
	if r = f.read(in); len(r.Services) > reader.MaxServices {
		reader.Fail(reader.Position{File: in.Name}, "it has more than %d services; split it", reader.MaxServices)
	}
	return r, nil
}

// plainText returns a text as UTF-8, without the mark of byte order that editors of other systems put before it.
func plainText(data []byte) []byte {
	if text, marked := bytes.CutPrefix(data, []byte("\xef\xbb\xbf")); marked {
		return text
	}
	for mark, order := range map[string]binary.ByteOrder{"\xfe\xff": binary.BigEndian, "\xff\xfe": binary.LittleEndian} {
		if text, marked := bytes.CutPrefix(data, []byte(mark)); marked {
			units := make([]uint16, len(text)/2)
			for i := range units {
				units[i] = order.Uint16(text[2*i:])
			}
			return []byte(string(utf16.Decode(units)))
		}
	}
	return data
}
