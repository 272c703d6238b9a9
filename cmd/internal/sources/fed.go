package sources

import (
	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/file"
	"svcproxy.dev/svcproxy/source/keep"
	"svcproxy.dev/svcproxy/source/remote"
)

// openFed opens a source of this name whose service files a server has, which f follows. A Server of f names that server in status.
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
