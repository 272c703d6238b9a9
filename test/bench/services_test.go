//go:build bench

package bench

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"

	"svcproxy.dev/svcproxy/test/lab"
)

const (
	perFile = 100 // services in a file
	vipPort = 80
)

var (
	// endpointRange holds all endpoints; one namespace answers for every address of it.
	endpointRange = netip.MustParsePrefix("10.128.0.0/9")

	firstVIP = netip.MustParseAddr("10.96.0.1")
	// spare are endpoints that no service has at the start.
	spare = netip.MustParseAddr("10.192.0.0")
)

// makeServices returns n services, each with endpoints that no other has.
func makeServices(n int) []lab.Service {
	all := make([]lab.Service, n)
	for i := range all {
		s := lab.Service{
			Name:  fmt.Sprintf("service-%05d", i),
			VIPs:  []netip.Addr{offset(firstVIP, i)},
			Ports: []lab.Port{{Name: "http", Port: vipPort, TargetPort: lab.EndpointPorts[0]}},
		}
		for j := range endpointsEach {
			addr := offset(endpointRange.Addr(), 1+i*endpointsEach+j)
			s.Endpoints = append(s.Endpoints, lab.Endpoint{Address: addr})
		}
		all[i] = s
	}
	return all
}

// last returns where the last of the services listens.
func last(all []lab.Service) netip.AddrPort {
	return netip.AddrPortFrom(all[len(all)-1].VIPs[0], vipPort)
}

// offset returns the n-th IPv4 address after addr.
func offset(addr netip.Addr, n int) netip.Addr {
	b := addr.As4()
	v := int(b[0])<<24 + int(b[1])<<16 + int(b[2])<<8 + int(b[3]) + n
	return netip.AddrFrom4([4]byte{byte(v >> 24), byte(v >> 16), byte(v >> 8), byte(v)})
}

// writeFiles writes service files into dir.
func writeFiles(dir string, all []lab.Service) error {
	for from := 0; from < len(all); from += perFile {
		text, err := lab.File(all[from:min(from+perFile, len(all))]...)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, fileName(from)), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// fileName returns the name of the file that holds the i-th service.
func fileName(i int) string { return fmt.Sprintf("services-%03d.json", i/perFile) }
