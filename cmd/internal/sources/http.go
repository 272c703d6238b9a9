package sources

import (
	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/http"
)

func init() {
	Types = append(Types, Type{Name: http.Name, Precedence: 14, Open: openHTTP, Remote: true})
}

func openHTTP(c Config) source.Source {
	h := c.HTTP
	return openFed(c, http.Name, http.New(http.Options{
		URLs: h.URLs, Interval: h.Interval, Timeout: h.Timeout, MaxSize: int(h.MaxSize),
		CAFile: h.CAFile, CertFile: h.CertFile, KeyFile: h.KeyFile, BearerFile: h.BearerFile, PublicKey: h.PublicKey,
		Host: c.NodeName, UserAgent: "svcproxy/" + c.Version, StateDir: c.StateDir, Log: c.Log,
	}))
}
