package file

import "svcproxy.dev/svcproxy/source"

// save saves the ports as written, so that list endpoints can refer to them later.
func (w *writtenPorts) save() []source.WrittenPort {
	list := make([]source.WrittenPort, len(w.list))
	for i := range w.list {
		p := &w.list[i]
		list[i] = source.WrittenPort{Name: p.Name, First: p.numbers.first, Last: p.numbers.last, Protocols: p.protocols}
	}
	return list
}

// fromSaved returns the ports that save was given, as far as endpoints can refer to them.
func fromSaved(list []source.WrittenPort) (w writtenPorts) {
	w.list = make([]writtenPort, len(list))
	many := false
	for i, p := range list {
		w.list[i] = writtenPort{Port: source.Port{Name: p.Name}, numbers: numbers{p.First, p.Last}, protocols: p.Protocols}
		many = many || w.list[i].many()
	}
	for i := range w.list {
		for n := 0; many && n < w.list[i].count(); n++ {
			w.at = append(w.at, i)
		}
	}
	return w
}
