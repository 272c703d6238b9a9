package sources

import (
	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/file"
	"svcproxy.dev/svcproxy/source/keep"
	"svcproxy.dev/svcproxy/source/remote"
)

// openFed opens a source whose service files are on a server that f follows. If f has a method Server, its result names the
// server in status.
func openFed(c Config, name string, f remote.Fetcher) source.Source {
	server := ""
	if s, ok := f.(interface{ Server() string }); ok {
		server = s.Server()
	}
	return file.New(file.Options{
		Name: name, Fetcher: f, Server: server, Beside: c.Several, AllowEmpty: c.Guard.AllowEmpty,
		StateDir: keep.SourceDir(c.StateDir, name), Rules: c.Rules, Log: c.Log, Guard: guardOf(c.Settings), Keep: c.History.Keep,
	})
}
