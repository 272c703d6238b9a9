package configs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"svcproxy.dev/svcproxy/internal/trust"
	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/decode"
	"svcproxy.dev/svcproxy/source/disk"
	"svcproxy.dev/svcproxy/source/read"
)

// Default returns the settings of a host without svcproxy.toml.
func Default() Settings {
	s := standard()
	s.NodeName = hostName()
	return s
}

// hostName returns the name of this host in lower case, as kube-proxy takes it;
// "localhost" when the host has none that a node can have.
func hostName() string {
	name, err := os.Hostname()
	if name = strings.ToLower(name); err != nil || !source.IsName(name) {
		return "localhost"
	}
	return name
}

// Load reads svcproxy.toml at path. Without the file the settings are the
// defaults. With a fault that is no warning they are the defaults too, and should
// not be used. The error says why the file cannot be read; a file system that does not
// answer within 5 s is one reason.
func Load(path string) (Settings, []source.Fault, error) {
	data, err := disk.Answer(path, func() ([]byte, error) { return readText(path) })
	if errors.Is(err, fs.ErrNotExist) {
		return Default(), nil, nil
	}
	if err != nil {
		return Default(), nil, fmt.Errorf("reading settings: %w", err)
	}
	s, faults := Parse(path, data)
	if len(s.Notify.Command) > 0 {
		faults = append(faults, warnOfProgram(path, s.Notify.Command[0])...)
	}
	return s, faults, nil
}

// warnOfProgram warns of a program that is not run because others can change it, or the file that names it.
func warnOfProgram(path, program string) []source.Fault {
	for _, of := range []string{path, program} {
		why, err := disk.Answer(of, func() (string, error) { return trust.Writer(of) })
		if err != nil {
			why = source.Excerpt(of) + ": " + read.Reason(err)
		}
		if why != "" {
			return []source.Fault{{
				Pos: source.Position{File: path}, Msg: "svcproxy cannot run the program of [notify] on this host: " + why,
				Hint: "let root alone change the program, this file and every directory above them", Warning: true,
			}}
		}
	}
	return nil
}

// MaxSize is the size of the largest svcproxy.toml that is accepted, in bytes.
const MaxSize = 1 << 20

// readText returns the text of a file, and not much more than Parse takes of it.
func readText(path string) ([]byte, error) {
	f, _, err := disk.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, MaxSize+1))
}

// Parse reads the text of svcproxy.toml. It returns every fault of it; unless
// all are warnings the settings are the defaults.
func Parse(path string, data []byte) (Settings, []source.Fault) {
	if len(data) > MaxSize {
		return Default(), []source.Fault{{Pos: source.Position{File: path}, Msg: fmt.Sprintf("the file has more than %d bytes", MaxSize)}}
	}
	doc, faults := decode.TOML(path, data)
	if doc == nil {
		return Default(), faults
	}
	s := Default()
	r := decode.NewReader(nil)
	limitOwners(r)
	decode.Table(r, doc.Root, fileFields(), &s)
	s.checkSources(r)
	faults = append(faults, r.Faults(doc)...)
	if source.AnyError(faults) {
		return Default(), faults
	}
	return s, faults
}
