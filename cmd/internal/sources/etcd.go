package sources

import (
	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/etcd"
)

func init() {
	Types = append(Types, Type{Name: etcd.Name, Precedence: 16, Open: openEtcd, Remote: true})
}

func openEtcd(c Config) source.Source {
	e := c.Etcd
	return openFed(c, etcd.Name, etcd.New(etcd.Options{
		Endpoints: e.Endpoints, Prefix: e.Prefix, CAFile: e.CAFile, CertFile: e.CertFile, KeyFile: e.KeyFile,
		Username: e.Username, Password: e.Password, MaxSize: c.Rules.MaxSize(), Log: c.Log,
	}))
}
