// Sbom says what a Go program was built from, as a bill of materials in CycloneDX 1.6:
//
//	sbom FILE VERSION
//
// It has the modules that the Go command has written into the program, and Go's own library. The same
// program always gives the same bytes: no serial number, and a time only where SOURCE_DATE_EPOCH is set.
package main

import (
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: sbom FILE VERSION")
		os.Exit(2)
	}
	if err := write(os.Stdout, os.Args[1], os.Args[2], os.Getenv("SOURCE_DATE_EPOCH")); err != nil {
		fmt.Fprintln(os.Stderr, "sbom:", err)
		os.Exit(1)
	}
}

// write writes the bill of materials of a version of a program. epoch is its time, in seconds of Unix; "": none.
func write(w io.Writer, program, version, epoch string) error {
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return fmt.Errorf("reading what %s was built from: %w", program, err)
	}
	data, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	info.Main.Version = version // which the Go command knows of programs that it downloaded only
	b := bill(info)
	sum := sha256.Sum256(data)
	main := b.Metadata.Component
	main.Hashes = &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: hex.EncodeToString(sum[:])}}
	main.Properties = &[]cdx.Property{{Name: "file", Value: filepath.Base(program)}}
	if b.Metadata.Timestamp, err = timestamp(epoch); err != nil {
		return err
	}
	return cdx.NewBOMEncoder(w, cdx.BOMFileFormatJSON).SetPretty(true).EncodeVersion(b, cdx.SpecVersion1_6)
}

func timestamp(epoch string) (string, error) {
	if epoch == "" {
		return "", nil
	}
	seconds, err := strconv.ParseInt(epoch, 10, 64)
	if err != nil {
		return "", fmt.Errorf("SOURCE_DATE_EPOCH: %w", err)
	}
	return time.Unix(seconds, 0).UTC().Format(time.RFC3339), nil
}

// bill returns what a program was built from. The modules are in the order of their paths already.
func bill(info *debug.BuildInfo) *cdx.BOM {
	b := cdx.NewBOM()
	main := component(cdx.ComponentTypeApplication, &info.Main)
	b.Metadata = &cdx.Metadata{Component: &main}
	modules := []cdx.Component{library(&debug.Module{Path: "std", Version: strings.TrimPrefix(info.GoVersion, "go")})}
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		modules = append(modules, library(m))
	}
	refs := make([]string, len(modules))
	for i, m := range modules {
		refs[i] = m.BOMRef
	}
	b.Components = &modules
	b.Dependencies = &[]cdx.Dependency{{Ref: main.BOMRef, Dependencies: &refs}}
	return b
}

// library is a module; its property is its line of go.sum.
func library(m *debug.Module) cdx.Component {
	c := component(cdx.ComponentTypeLibrary, m)
	if m.Sum != "" {
		c.Properties = &[]cdx.Property{{Name: "go.sum", Value: m.Sum}}
	}
	return c
}

func component(kind cdx.ComponentType, m *debug.Module) cdx.Component {
	purl := "pkg:golang/" + m.Path
	if m.Version != "" {
		purl += "@" + m.Version
	}
	return cdx.Component{Type: kind, BOMRef: purl, PackageURL: purl, Name: m.Path, Version: m.Version}
}
